"""Recommendations for all users, compared with the matrix product that they need, implicit, and Faiss.

The limit is the product by PyTorch or NumPy, whichever is faster, on all cores, without a selection.
`sparring recommend` reads a run with two towers whose rows are replaced by random ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.measuring import Figure
from benchmarks.scale import Scale

__all__ = ["measure"]

NUM_USERS, NUM_ITEMS, DIM, K = 100_000, 1_000_000, 64, 100
PART_ROWS = 16_384
NUM_OF_PEERS = 2_048
"""Number of users for implicit and Faiss, whose time per user does not depend on it."""
BLOCK_USERS, BLOCK_ITEMS = 512, 4096
BAR, BAR_BYTES = 1.5, 2 << 30

Floats = npt.NDArray[np.float32]

_RUN = f"""
seed: 1
data: {{kind: table, path: log.parquet, categorical: [user, item], required: [user, item]}}
model: {{kind: two_towers, embedding_dim: {DIM}, user: [user], item: [item]}}
storage: {{backend: memory}}
optimizer: {{sparse: {{name: sgd, lr: 0.1}}, dense: {{name: sgd, lr: 0.1}}}}
training: {{epochs: 1}}
"""


def measure(scale: Scale) -> list[Figure]:
    """Measures the time of all parts relative to the products, and the largest resident memory."""
    if find_spec("sparring_packed") is None or find_spec("torch") is None:
        return [Figure("all users", "not measured", detail="requires sparring-packed and torch")]
    with TemporaryDirectory() as folder:
        sizes = scale.rows(NUM_USERS), scale.rows(NUM_ITEMS)
        # In its own process, whose memory does not count.
        writer = get_context("spawn").Process(target=write_run, args=(folder, *sizes))
        writer.start()
        writer.join()
        if writer.exitcode != 0:
            raise RuntimeError(f"writing the run failed with exit code {writer.exitcode}")
        return measure_run(folder)


def write_run(folder: str, num_users: int, num_items: int) -> None:
    """Writes the snapshot of a run with random rows."""
    import pyarrow
    from pyarrow import parquet

    from sparring import State, latest_snapshot, make_plugin_manager
    from sparring_cli.application import main
    from sparring_train.run.same_run import RUN
    from sparring_train.run.saved_run import open_run

    place = Path(folder)
    ids = np.arange(1_000) % 64
    parquet.write_table(pyarrow.table({"user": ids, "item": ids}), place / "log.parquet")
    (place / "run.yaml").write_text(_RUN)
    assert main(["train", str(place / "run.yaml"), f"snapshots.url={place / 'small'}"]) == 0
    small = latest_snapshot(str(place / "small"))
    assert small is not None
    random = np.random.default_rng(0)
    with open_run(small, (), make_plugin_manager()) as (_, model):
        container = model.source.container
        for table, count in (("user", num_users), ("item", num_items)):
            storage = container.storage(table)
            width = storage.find(np.array([0])).rows.shape[1]
            for begin in range(0, count, 1 << 16):
                keys = np.arange(begin, min(begin + (1 << 16), count))
                storage.upsert(keys, random.standard_normal((len(keys), width), np.float32))
        # The states that the loop saved: the configuration, and the model of the framework.
        saved = {name: small.state(name) for name in (RUN, "torch")}
        states = {name: State(each.values, each.arrays) for name, each in saved.items()}
        container.save(str(place / "run" / "step-000000001"), states=states)


@dataclass
class _Seconds:
    """Seconds of each part."""

    ours: list[float] = field(default_factory=list)
    torch: list[float] = field(default_factory=list)
    numpy: list[float] = field(default_factory=list)


def measure_run(folder: str) -> list[Figure]:
    """Measures the run that `write_run` wrote."""
    import pyarrow

    from sparring import latest_snapshot
    from sparring_train.recommend.all_users import RecommendationOptions, open_recommendations
    from sparring_train.recommend.item_vectors import ItemVectors
    from sparring_train.recommend.part_jobs import compute_parts, count_parts

    snapshot = latest_snapshot(f"{folder}/run")
    assert snapshot is not None
    options = RecommendationOptions(k=K, part_rows=PART_ROWS)
    seconds = _Seconds()
    begin = time.perf_counter()
    with open_recommendations(snapshot, f"{folder}/best", options) as job:
        opened = time.perf_counter() - begin
        [path] = Path(f"{folder}/best").glob("_items-*.arrow")
        items = ItemVectors.of(pyarrow.memory_map(str(path))).rows
        users = np.random.default_rng(1).standard_normal((PART_ROWS, DIM), np.float32)
        for part in range(count_parts(job)):
            size = min(PART_ROWS, job.num_rows - part * PART_ROWS)
            contenders: dict[str, Callable[[], object]] = {
                "ours": lambda part=part: compute_parts(job, job.output, [part]),
                "torch": lambda size=size: _products_of_torch(users[:size], items),
                "numpy": lambda size=size: _products_of_numpy(users[:size], items),
            }
            for name, run in contenders.items():
                begin = time.perf_counter()
                run()
                getattr(seconds, name).append(time.perf_counter() - begin)
        num_users = job.num_rows
    peak = _peak_bytes()
    faster = min((seconds.torch, seconds.numpy), key=sum)
    product = "PyTorch" if faster is seconds.torch else "NumPy"
    parts = [our / its for our, its in zip(seconds.ours, faster, strict=True)]
    ratio = sum(seconds.ours) / sum(faster)
    first = Figure(
        what=f"top {K} of {len(items):,} items x {DIM} for {num_users:,} users",
        value=f"{ratio:.2f} x the product of {product}",
        bar=f"<= {BAR} x",
        is_reached=ratio <= BAR,
        detail=f"{sum(seconds.ours):.1f} s; PyTorch {sum(seconds.torch):.1f} s, NumPy "
        f"{sum(seconds.numpy):.1f} s; parts {min(parts):.2f}-{max(parts):.2f} x; opening {opened:.1f} s",
        ratio=1 / ratio,
    )
    memory = Figure(
        what="  largest resident memory",
        value=f"{peak / 2**30:.2f} GiB",
        bar="<= 2 GiB",
        is_reached=peak <= BAR_BYTES,
        detail="with PyTorch, and the mapped vectors of the items",
    )
    per_user = sum(seconds.ours) / num_users
    return [first, memory, *_beside_peers(users[:NUM_OF_PEERS], items, per_user)]


def _beside_peers(users: Floats, items: Floats, per_user: float) -> list[Figure]:
    from sparring_packed import top_k

    expected = top_k([(np.arange(len(items)), items)], users, K).keys
    peers: dict[str, Callable[[], npt.NDArray[Any]]] = {}
    if find_spec("implicit") is not None:
        from implicit.cpu.topk import topk

        peers["implicit's batch recommend"] = lambda: topk(items, users, K)[0]
    if find_spec("faiss") is not None:
        import faiss

        index = faiss.IndexFlatIP(items.shape[1])
        index.add(items)
        peers["Faiss's IndexFlatIP"] = lambda: index.search(users, K)[1]
    figures = []
    for name, run in peers.items():
        begin = time.perf_counter()
        found = run()
        theirs = (time.perf_counter() - begin) / len(users)
        if (np.sort(found, axis=1) == np.sort(expected, axis=1)).mean() < 0.999:
            raise AssertionError(f"the items of {name} differ from ours")
        figures.append(
            Figure(
                what=f"  {name}, {len(users):,} users",
                value=f"{theirs / per_user:.2f} x our time per user",
                detail=f"{theirs * 1e3:.2f} ms and {per_user * 1e3:.2f} ms per user",
                ratio=theirs / per_user,
            )
        )
    return figures


def _products_of_numpy(users: Floats, items: Floats) -> None:
    out = np.empty(BLOCK_USERS * BLOCK_ITEMS, np.float32)
    for begin in range(0, len(items), BLOCK_ITEMS):
        block = items[begin : begin + BLOCK_ITEMS]
        for first in range(0, len(users), BLOCK_USERS):
            some = users[first : first + BLOCK_USERS]
            shape = len(some), len(block)
            np.matmul(some, block.T, out=out[: len(some) * len(block)].reshape(shape))


def _products_of_torch(users: Floats, items: Floats) -> None:
    import os

    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    out = torch.empty(BLOCK_USERS * BLOCK_ITEMS)
    mine, theirs = torch.from_numpy(users), torch.from_numpy(items)
    for block in theirs.split(BLOCK_ITEMS):
        for some in mine.split(BLOCK_USERS):
            shape = len(some), len(block)
            torch.matmul(some, block.T, out=out[: len(some) * len(block)].view(shape))
    torch.set_num_threads(before)


def _peak_bytes() -> int:
    """Returns the largest resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/self/status contains no VmHWM")
