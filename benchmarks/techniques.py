"""The effect of each technique of the fast path: a step with it, compared with a step without it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.inputs import Batch, batches
from benchmarks.measuring import Figure, Timing, alternate, ratios
from benchmarks.ours import OurBags
from benchmarks.programs import build_program, run_program
from benchmarks.scale import Scale
from sparring import update_rows
from sparring.adapter import resolve_method
from sparring.contracts import MethodChoice, Storage, UpdateRows
from sparring.kernels import functions as kernels

__all__ = ["measure"]

NUM_ROWS, DIM, NUM_BAGS, BAG_SIZE = 2_000_000, 64, 65_536, 4
BLOCKS = (1, 4, 8, 32, 64)
NUM_KEYS = 65_536
HKV = Path(__file__).parent.parent / "packages/backend-hkv"
NO_PREFETCH = "#define __builtin_prefetch(...) static_cast<void>(0)\n"


def measure(scale: Scale) -> list[Figure]:
    """Measures ratios without to with each technique, and nanoseconds per key per pipeline length."""
    return [*_ladder(scale, "uniform"), *_ladder(scale, "zipf"), *_builds(scale)]


# -- parts of a step ------------------------------------------------------------


def _ladder(scale: Scale, skew: str) -> list[Figure]:
    num_rows, num_bags = scale.rows(NUM_ROWS), scale.rows(NUM_BAGS)
    random = np.random.default_rng(0)
    dense = random.standard_normal((num_rows, DIM), np.float32)
    made = OurBags(dense, "rowwise_adagrad", lr=0.01)
    inputs = batches(8, skew=skew, num_rows=num_rows, num_bags=num_bags, bag_size=BAG_SIZE)
    gradient = random.standard_normal((num_bags, DIM), np.float32) * np.float32(0.01)
    storage = made.optimizer.container.storage("t")
    figures = []
    for what, technique, runs in (
        (
            "pooled forward",
            "unique rows copied out first",
            {"with": made.forward(inputs), "without": _pool_copies(storage, inputs)},
        ),
        (
            "forward + backward + update",
            "unique rows, their gradients and a second copy to update",
            {
                "with": made.step(inputs, torch.from_numpy(gradient)),
                "without": _step_in_stages(storage, inputs, gradient),
            },
        ),
        (
            "update of unique keys",
            "find, change, upsert",
            {
                "with": _one_visit(storage, inputs, gradient),
                "without": _find_and_upsert(storage, inputs, gradient),
            },
        ),
    ):
        timings = alternate(runs, rounds=scale.rounds(15))
        figures.append(_gain(f"{what}, {skew}", technique, timings))
    made.optimizer.container.close()
    return figures


def _gain(what: str, without: str, timings: dict[str, Timing]) -> Figure:
    found = ratios(timings["without"], timings["with"])
    return Figure(
        what=what,
        value=f"{median(found):.2f} x",
        detail=(
            f"without it ({without}) {timings['without'].median * 1e3:.2f} ms, with it "
            f"{timings['with'].median * 1e3:.2f} ms; rounds {min(found):.2f}-{max(found):.2f}"
        ),
        ratio=median(found),
    )


def _pool_copies(storage: Storage, inputs: Sequence[Batch]) -> Callable[[], object]:
    turns = cycle(inputs)

    def run() -> object:
        batch = next(turns)
        distinct = kernels.dedup(batch.ids)
        rows = storage.find(distinct.keys, columns=(0, DIM)).rows
        return kernels.pool(rows, distinct.inverse, batch.offsets)

    return run


def _step_in_stages(
    storage: Storage, inputs: Sequence[Batch], gradient: np.ndarray
) -> Callable[[], object]:
    turns = cycle(inputs)
    update = _Updating(storage)

    def run() -> object:
        batch = next(turns)
        distinct = kernels.dedup(batch.ids)
        rows = storage.find(distinct.keys, columns=(0, DIM)).rows
        kernels.pool(rows, distinct.inverse, batch.offsets)
        gradients = kernels.pool_backward(
            gradient, distinct.inverse, batch.offsets, len(distinct.keys)
        )
        update.by_copies(distinct.keys, gradients)
        return rows

    return run


def _one_visit(
    storage: Storage, inputs: Sequence[Batch], gradient: np.ndarray
) -> Callable[[], object]:
    turns, update = _distinct(inputs), _Updating(storage)

    def run() -> object:
        keys = next(turns)
        return update_rows(storage, keys, update.gradients_for(keys, gradient), update.choice)

    return run


def _find_and_upsert(
    storage: Storage, inputs: Sequence[Batch], gradient: np.ndarray
) -> Callable[[], object]:
    turns, update = _distinct(inputs), _Updating(storage)

    def run() -> object:
        keys = next(turns)
        return update.by_copies(keys, update.gradients_for(keys, gradient))

    return run


def _distinct(inputs: Sequence[Batch]) -> Iterator[np.ndarray]:
    return cycle([kernels.dedup(batch.ids).keys for batch in inputs])


class _Updating:
    """The same update method, applied to copies of rows."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        method = resolve_method("rowwise_adagrad")
        self.choice = MethodChoice(method, method.hyperparameters(lr=0.01), 1)

    def gradients_for(self, keys: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        return np.resize(gradient, (len(keys), DIM))

    def by_copies(self, keys: np.ndarray, gradients: np.ndarray) -> object:
        rows = self._storage.find(keys).rows
        parts = UpdateRows(keys, rows, rows[:, :DIM], rows[:, DIM:], gradients, self.choice.step)
        self.choice.method.update(parts, self.choice.hyper)
        return self._storage.upsert(keys, rows)


# -- builds of the table ---------------------------------------------------------


def _builds(scale: Scale) -> list[Figure]:
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        reason = "requires cmake and ninja, to build the table without each technique"
        return [Figure("prefetching, row layout", "not measured", detail=reason)]
    blocks = (32,) if scale.is_quick else BLOCKS
    builds = {f"blocks of {n}": f"#define SPARRING_HKV_BLOCK {n}\n" for n in blocks}
    builds["no prefetches"] = NO_PREFETCH
    num_rows, num_keys = scale.rows(NUM_ROWS), min(NUM_KEYS, scale.rows(NUM_ROWS) // 2)
    seconds: dict[tuple[str, str], list[float]] = {}
    works = ("visit", "update", "update_apart")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        runs = {
            name: stack.enter_context(
                run_program(
                    _built(Path(folder) / str(number), definition), num_rows, 4 * DIM + 4, num_keys
                )
            )
            for number, (name, definition) in enumerate(builds.items())
        }
        for _ in range(scale.rounds(2)):
            for run in runs.values():
                for work in works:
                    run(work)
        for _ in range(scale.rounds(15)):
            for name, run in runs.items():
                for work in works:
                    seconds.setdefault((name, work), []).append(run(work)[0])
    medians = {key: median(some) for key, some in seconds.items()}
    best = "blocks of 32"
    figures = [
        Figure(
            what=f"  {name}, one thread",
            value=f"visit {medians[name, 'visit']:.0f}, update {medians[name, 'update']:.0f} ns per key",
            detail=f"{medians[name, 'visit'] / medians[best, 'visit']:.2f} and "
            f"{medians[name, 'update'] / medians[best, 'update']:.2f} x the time of {best}",
        )
        for name in builds
    ]
    apart = medians[best, "update_apart"] / medians[best, "update"]
    figures.append(
        Figure(
            what="state behind the embedding, uniform, one thread",
            value=f"{apart:.2f} x",
            detail=f"4 bytes of state in a separate table: "
            f"{medians[best, 'update_apart']:.0f} ns per key, behind the embedding "
            f"{medians[best, 'update']:.0f}",
            ratio=apart,
        )
    )
    return figures


def _built(folder: Path, definition: str) -> Path:
    """Compiles the table with `definition` before each source."""
    folder.mkdir()
    header = folder / "definition.h"
    header.write_text(definition)
    settings = ["-DSPARRING_HKV_BENCHMARKS=ON", f"-DCMAKE_CXX_FLAGS=-include {header}"]
    return build_program("variants", HKV, folder, settings)
