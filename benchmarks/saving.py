"""How much steps slow down while a snapshot is saved beside them, and what that takes.

Steps of a click model on large tables, in blocks: some with no save, then all that fit beside one
save, alternately, in one run. What is saved is a full snapshot, committed and synced.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measuring import Figure
from benchmarks.scale import Scale
from sparring import StepContainer
from sparring_torch import EmbeddingBag, Optimizer

__all__ = ["measure"]

NUM_TABLES, DIM, POOLED = 4, 32, 4
BATCH, SKEW = 2048, 1.05
ROUNDS = 2
_ALONE = 50
MOST_SLOWER, MOST_BYTES = 0.3, 256 << 20


class _Model(nn.Module):
    def __init__(self, container: StepContainer) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            EmbeddingBag(DIM, mode="sum", name=f"table_{i}", container=container)
            for i in range(NUM_TABLES)
        )
        self.top = nn.Sequential(
            nn.Linear(NUM_TABLES * DIM, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(),
            nn.Linear(64, 1),
        )  # fmt: skip

    def forward(self, ids: list[Tensor], offsets: Tensor) -> Tensor:
        pooled = [bag(each, offsets) for bag, each in zip(self.bags, ids, strict=True)]
        logits: Tensor = self.top(torch.cat(pooled, 1))
        return logits.square().mean()


@dataclass
class _Memory:
    """The most memory of this process, beyond what it had at the beginning."""

    most_bytes: int = 0
    _end: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> _Memory:
        self._first = _resident_bytes()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.02):
            self.most_bytes = max(self.most_bytes, _resident_bytes() - self._first)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _filled(model: _Model, num_rows: int) -> int:
    """Gives every key a row. Returns the bytes of all rows."""
    container = model.bags[0].agent.container
    random = np.random.default_rng(0)
    total = 0
    for name, table in container.tables.items():
        storage = container.storage(name)
        for begin in range(0, num_rows, 65_536):
            keys = np.arange(begin, min(begin + 65_536, num_rows))
            rows = random.random((len(keys), table.width), np.float32)
            storage.upsert(keys, rows)
        total += num_rows * table.row_bytes
    return total


def _batches(num_rows: int) -> Iterator[list[Tensor]]:
    """Zipf over all keys, the frequent ones spread over them."""
    random = np.random.default_rng(1)
    weights = np.arange(1, num_rows + 1) ** -SKEW
    cumulated = np.cumsum(weights / weights.sum())
    spread = random.permutation(num_rows)
    batches = [
        [
            torch.from_numpy(spread[np.searchsorted(cumulated, random.random(BATCH * POOLED))])
            for _ in range(NUM_TABLES)
        ]
        for _ in range(64)
    ]
    while True:
        yield from batches


def measure(scale: Scale) -> list[Figure]:
    """Step times without and beside saves, in one run."""
    num_rows = 20_000 if scale.is_quick else 2_000_000
    folder = Path(tempfile.mkdtemp(prefix="sparring-saving-"))
    try:
        with StepContainer() as container:
            model = _Model(container)
            tables = Optimizer(model, "adagrad", lr=0.01)
            dense = torch.optim.Adam(model.parameters())
            num_bytes = _filled(model, num_rows)
            batches = _batches(num_rows)
            offsets = torch.arange(BATCH) * POOLED

            def step() -> None:
                dense.zero_grad()
                model(next(batches), offsets).backward()
                tables.step()
                dense.step()

            return _figures(container, step, folder, num_bytes)
    finally:
        shutil.rmtree(folder)


def _figures(
    container: StepContainer, step: Callable[[], None], folder: Path, num_bytes: int
) -> list[Figure]:
    plain: list[float] = []
    beside: list[float] = []
    seconds: list[float] = []
    for _ in range(20):
        step()
    with _Memory() as memory:
        for number in range(ROUNDS):
            plain += [_timed(step) for _ in range(_ALONE)]
            url = str(folder / f"save-{number}")
            begin = time.perf_counter()
            task = container.save(url, blocking=False)
            # What stands still while tables are frozen is part of the slow-down.
            frozen = time.perf_counter() - begin
            during = []
            while not task.done():
                during.append(_timed(step))
            during[0] += frozen
            beside += during
            seconds.append(task.result(60.0).seconds)
            shutil.rmtree(url)
    slower = fmean(beside) / fmean(plain) - 1
    counters = container.saves.counters
    container.saves.join()
    gigabytes = num_bytes / 1e9
    return [
        Figure(
            f"steps beside saves of {gigabytes:.2f} GB, slower by",
            f"{slower:.0%}",
            f"<= {MOST_SLOWER:.0%}",
            slower <= MOST_SLOWER,
            f"{fmean(plain) * 1e3:.1f} ms alone, {fmean(beside) * 1e3:.1f} ms beside, mean",
        ),
        Figure("median step alone, beside", _pair(median(plain), median(beside))),
        Figure(
            "99th of 100 steps alone, beside",
            _pair(float(np.quantile(plain, 0.99)), float(np.quantile(beside, 0.99))),
        ),
        Figure(
            "a save beside steps",
            f"{median(seconds):.1f} s, {gigabytes / median(seconds):.2f} GB/s",
            detail=f"{len(beside) // ROUNDS} steps each",
        ),
        Figure(
            "memory above the tables",
            f"{memory.most_bytes / 2**20:.0f} MiB",
            f"<= {MOST_BYTES >> 20} MiB",
            memory.most_bytes <= MOST_BYTES,
            f"old rows at most {counters.most_kept_bytes / 2**20:.0f} MiB, of "
            f"{counters.rows_kept:,} rows kept",
        ),
        Figure(
            "of all saves: frozen, waiting for room",
            f"{counters.freeze_seconds * 1e3:.0f} ms, {counters.wait_seconds * 1e3:.0f} ms",
        ),
    ]


def _pair(alone: float, beside: float) -> str:
    return f"{alone * 1e3:.1f} ms, {beside * 1e3:.1f} ms"


def _timed(step: Callable[[], None]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin
