"""Exact top-k over a packed table, compared with the required matrix products.

The limit is NumPy's product of the same blocks, with float32 rows in memory: no file, no quantization,
and no selection.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.measuring import Figure, Timing, alternate, ratios
from benchmarks.scale import Scale
from benchmarks.serving_lookup import DIM, write_snapshot

__all__ = ["measure"]

NUM_ROWS, NUM_QUERIES, K = 1_000_000, 1_000, 10
ROUNDS = 7
NUM_CHECKED = 20
BARS = {"fp32": 1.5, "int8": None}

Floats = npt.NDArray[np.float32]


def measure(scale: Scale) -> list[Figure]:
    """Measures times of top-k relative to the times of the products."""
    if find_spec("sparring_packed") is None:
        return [Figure("top-k", "not measured", detail="requires sparring-packed")]
    import sparring_packed

    num_rows, num_queries = scale.rows(NUM_ROWS), scale.rows(NUM_QUERIES)
    queries = np.random.default_rng(1).standard_normal((num_queries, DIM), np.float32)
    figures = []
    with TemporaryDirectory() as folder:
        run = write_snapshot(Path(folder), num_rows)
        for dtype, bar in BARS.items():
            sparring_packed.write(run, f"{folder}/{dtype}", quantize={"item": dtype})
            with sparring_packed.open(f"{folder}/{dtype}") as tables:
                keys, rows = (
                    np.concatenate(each) for each in zip(*tables.scan("item"), strict=True)
                )
                _check_answers(tables, keys, rows, queries)
                contenders = _contenders(tables, rows, queries)
                timings = alternate(contenders, rounds=scale.rounds(ROUNDS), warm_up=1)
            figures.append(_figure(dtype, (num_rows, num_queries), timings, bar))
    return [*figures, *_beside_peers(scale, rows[: num_rows // 5], queries)]


def _contenders(tables: Any, rows: Floats, queries: Floats) -> dict[str, Callable[[], object]]:
    from benchmarks.all_users import BLOCK_ITEMS as BLOCK_ROWS
    from benchmarks.all_users import BLOCK_USERS as BLOCK_QUERIES

    scores = np.empty(BLOCK_QUERIES * BLOCK_ROWS, np.float32)

    def multiply() -> None:
        for begin in range(0, len(rows), BLOCK_ROWS):
            block = rows[begin : begin + BLOCK_ROWS]
            for first in range(0, len(queries), BLOCK_QUERIES):
                some = queries[first : first + BLOCK_QUERIES]
                out = scores[: len(some) * len(block)].reshape(len(some), len(block))
                np.matmul(some, block.T, out=out)

    return {"ours": lambda: tables.top_k("item", queries, K), "limit": multiply}


def _beside_peers(scale: Scale, rows: Floats, queries: Floats) -> list[Figure]:
    """Measures alternatives for rows in memory: NumPy's selection per block, and Faiss's exact index."""
    from sparring_packed import FaissIndex, top_k

    keys = np.arange(len(rows))
    contenders: dict[str, Callable[[], npt.NDArray[np.int64]]] = {
        "ours": lambda: top_k([(keys, rows)], queries, K).keys,
        "argpartition": lambda: _by_argpartition(rows, queries),
    }
    if find_spec("faiss") is not None:
        index = FaissIndex([(keys, rows)])
        contenders["Faiss's IndexFlatIP"] = lambda: index.top_k(queries, K).keys
    answers = {name: np.sort(find(), axis=1) for name, find in contenders.items()}
    for name, found in answers.items():
        # The last items of a ranking may have equal scores in float32.
        if (found == answers["ours"]).mean() < 0.999:
            raise AssertionError(f"the rows of {name} differ from ours")
    timings = alternate(contenders, rounds=scale.rounds(ROUNDS), warm_up=1)
    figures = []
    for name in list(contenders)[1:]:
        found = ratios(timings[name], timings["ours"])
        figures.append(
            Figure(
                what=f"  the same of {len(rows):,} rows in memory",
                value=f"{median(found):.2f} x {name}",
                detail=f"rounds {min(found):.2f}-{max(found):.2f} x",
                ratio=median(found),
            )
        )
    return figures


def _by_argpartition(rows: Floats, queries: Floats) -> npt.NDArray[np.int64]:
    scores = np.empty((len(queries), 0), np.float32)
    places = np.empty((len(queries), 0), np.int64)
    for begin in range(0, len(rows), 4096):
        products = queries @ rows[begin : begin + 4096].T
        best = np.argpartition(-products, min(K, products.shape[1]) - 1, axis=1)[:, :K]
        scores = np.concatenate([scores, np.take_along_axis(products, best, axis=1)], axis=1)
        places = np.concatenate([places, best + begin], axis=1)
        kept = np.argpartition(-scores, K - 1, axis=1)[:, :K]
        scores, places = (np.take_along_axis(each, kept, axis=1) for each in (scores, places))
    return places


def _figure(
    dtype: str, sizes: tuple[int, int], timings: dict[str, Timing], bar: float | None
) -> Figure:
    num_rows, num_queries = sizes
    ours, limit = timings["ours"], timings["limit"]
    # Compares simultaneous rounds.
    shares = [our / its for our, its in zip(ours.seconds, limit.seconds, strict=True)]
    share = median(shares)
    return Figure(
        what=f"top-{K} of {num_rows:,} rows x {DIM} in {dtype}, {num_queries:,} queries",
        value=f"{share:.2f} x the products",
        bar=None if bar is None else f"<= {bar} x",
        is_reached=None if bar is None else share <= bar,
        detail=(
            f"{ours.median * 1e3:.0f} ms, NumPy's products of the same blocks "
            f"{limit.median * 1e3:.0f} ms; rounds {min(shares):.2f}-{max(shares):.2f} x"
        ),
        ratio=1 / share,
    )


def _check_answers(tables: Any, keys: npt.NDArray[np.int64], rows: Floats, queries: Floats) -> None:
    """Compares some results with sorting all scores."""
    some = queries[:NUM_CHECKED]
    found = tables.top_k("item", some, K)
    scores = some.astype(np.float64) @ rows.T.astype(np.float64)
    best = np.argpartition(-scores, K, axis=1)[:, :K]
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
    expected = np.take_along_axis(best, order, axis=1)
    if not np.array_equal(keys[expected], found.keys):
        # Rows with equal scores in float32 may be swapped.
        theirs = np.take_along_axis(scores, expected, axis=1)
        if not np.allclose(found.scores, theirs, rtol=1e-5):
            raise AssertionError("the best rows differ from the result of sorting all scores")
