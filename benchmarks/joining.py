"""Open impressions of `data.join` in RocksDB: rate, resident memory, and time of a checkpoint.

The measurement runs in a separate process. The impressions have 26 columns of ids and 13 numbers. Most
records are copies of one, so that the files are smaller than those of different records.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.measuring import Figure
from benchmarks.scale import Scale
from sparring_rocksdb.join_store import RocksdbJoinOptions, RocksdbJoinStore
from sparring_train import Column, ColumnBatch, Feature, Schema
from sparring_train.data.join.joiner import Event, Joiner, Window
from sparring_train.data.join.row_codec import RowCodec
from sparring_train.data.join.step_store import StepStore

__all__ = ["measure"]

NUM_OPEN, BATCH, NUM_STEPS = 10_000_000, 8192, 40
NUM_FEATURES, NUM_NUMBERS = 26, 13
BAR_BYTES = 1 << 30
_SCHEMA = Schema(
    tuple(Feature(f"c{number}", may_be_missing=True) for number in range(NUM_FEATURES)),
    tuple(f"n{number}" for number in range(NUM_NUMBERS)),
)


def measure(scale: Scale) -> list[Figure]:
    """Measures a join with 10⁷ open impressions, one action per ten impressions."""
    count = scale.rows(NUM_OPEN) // BATCH * BATCH
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        rate, cpu_rate, num_bytes, seconds, file_bytes = pool.apply(_run, (count,))
    what = f"join with {count:,} open impressions in RocksDB"
    return [
        Figure(f"{what}, impressions joined", f"{rate:,.0f}/s", detail=f"{cpu_rate:,.0f}/s of CPU"),
        Figure(
            f"{what}, largest resident memory of the process",
            f"{num_bytes / 2**20:,.0f} MiB",
            bar=f"<= {BAR_BYTES >> 20:,} MiB",
            is_reached=num_bytes <= BAR_BYTES,
            detail=f"files: {file_bytes / 2**30:.2f} GiB",
        ),
        Figure(f"{what}, checkpoint by hard links", f"{seconds:.2f} s"),
    ]


class _Feed:
    """Impressions with one event per second, whose windows end after `num_open` seconds."""

    def __init__(self, store: RocksdbJoinStore, num_open: int) -> None:
        self._num_open = num_open
        self.joiner = Joiner(StepStore(store), Window(float(num_open), 5.0, None))
        self._random = np.random.default_rng(5)
        self._codec = RowCodec(_SCHEMA, has_weights=False)
        self._step = 0

    def step(self, first: int) -> int:
        """Adds a batch of impressions, and returns the number of examples."""
        self._step += 1
        ids = {
            each.name: Column(self._random.integers(0, 1 << 40, BATCH)) for each in _SCHEMA.features
        }
        numbers = self._random.normal(size=(BATCH, NUM_NUMBERS)).astype(np.float32)
        rows = self._codec.encode(ColumnBatch(ids, numbers))
        events = [
            Event(float(first + at), False, key_of(first + at), row, 0.0, 0, self._step)
            for at, row in enumerate(rows)
        ]
        begin = max(first - self._num_open, 0)
        clicked = self._random.integers(begin, first + 1, BATCH // 10).tolist()
        events += [Event(float(first), True, key_of(n), b"", 1.0, 0, self._step) for n in clicked]
        examples = self.joiner.advance(self._step, events, float(first + BATCH - 1), BATCH)
        if examples:
            self._codec.decode([each.row for each in examples])
        return len(examples)

    def checkpoint(self, folder: Path) -> float:
        began = time.perf_counter()
        self.joiner.store.checkpoint(self._step, str(folder))
        return time.perf_counter() - began


def key_of(number: int) -> bytes:
    """Returns a key in no order."""
    return (number * 0x9E3779B97F4A7C15 & (1 << 64) - 1).to_bytes(8, "little")


def _run(num_open: int) -> tuple[float, float, int, float, int]:
    with tempfile.TemporaryDirectory(prefix="sparring-join-") as root:
        store = RocksdbJoinStore(f"{root}/open", RocksdbJoinOptions())
        feed = _Feed(store, num_open)
        num_fed = min(NUM_STEPS + 10, num_open // BATCH) * BATCH
        for first in range(0, num_fed, BATCH):
            feed.step(first)
        [(_, _, value)] = feed.joiner.store.scan(-np.inf, np.inf, 1)
        # The others stay open, so they are written without a join.
        for first in range(num_fed, num_open, BATCH):
            added = [(key_of(n), float(n + num_open), value) for n in range(first, first + BATCH)]
            store.write([], added)
        began, began_cpu, joined = time.perf_counter(), time.process_time(), 0
        for step in range(max(num_fed // BATCH - 10, 1)):
            joined += feed.step(num_open + step * BATCH)
        seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
        saved = Path(root, "saved")
        checkpoint = feed.checkpoint(saved)
        size = sum(each.stat().st_size for each in saved.iterdir())
        status = Path(f"/proc/{os.getpid()}/status").read_text()
        [kilobytes] = re.findall(r"VmHWM:\s+(\d+)", status)
        store.close()
    return joined / seconds, joined / cpu, 1024 * int(kilobytes), checkpoint, size
