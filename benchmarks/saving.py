"""Slowdown of training steps while a snapshot is saved, and the resources of the save.

Steps of a click model on large tables run in blocks, alternately without a save and during one, in one
run, for several shares of a core that a save may use. The save is a full snapshot, committed and synced.
For comparison, the same steps run while a thread only writes as many bytes to one file.
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
from sparring import SaveOptions, StepContainer
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer

__all__ = ["measure"]

NUM_TABLES, DIM, POOLED = 4, 32, 4
BATCH, SKEW = 2048, 1.05
ROUNDS = 2
SHARES = (1.0, 0.3, None)
"""Shares of a core that saves may use; None for the default."""
PLAIN_SECONDS = 4.0
_ALONE = 100
_PIECE_BYTES = 4 << 20
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
    """Maximum memory of this process, in addition to the initial memory."""

    max_bytes: int = 0
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
            self.max_bytes = max(self.max_bytes, _resident_bytes() - self._first)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _filled(model: _Model, num_rows: int) -> int:
    """Creates a row for every key. Returns the bytes of all rows."""
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
    """Returns batches with a Zipf distribution over all keys, with frequent keys scattered."""
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
    """Measures step times with and without saves, in one run."""
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
                tables.zero_grad()
                dense.step()

            return _figures(container, step, folder, num_bytes)
    finally:
        shutil.rmtree(folder)


def _figures(
    container: StepContainer, step: Callable[[], None], folder: Path, num_bytes: int
) -> list[Figure]:
    for _ in range(20):
        step()
    gigabytes = num_bytes / 1e9
    figures = []
    with _Memory() as memory:
        for share in SHARES:
            beside = _Beside()
            for number in range(ROUNDS):
                _save_once(container, step, f"{folder}/save-{number}", share, beside)
            figures += _share_figures(beside, share, gigabytes)
    counters = container.saves.counters
    figures += [
        Figure(
            "memory in addition to the tables",
            f"{memory.max_bytes / 2**20:.0f} MiB",
            f"<= {MOST_BYTES >> 20} MiB",
            memory.max_bytes <= MOST_BYTES,
            f"at most {counters.most_undo_bytes / 2**20:.0f} MiB of old rows; "
            f"{counters.undo_rows:,} rows were kept in total",
        ),
        Figure(
            "all saves together: tables frozen, steps waiting for memory",
            f"{counters.freeze_seconds * 1e3:.0f} ms, {counters.wait_seconds * 1e3:.0f} ms",
        ),
    ]
    seconds = beside.seconds[-1] if beside.seconds else 0.0
    for over in (seconds, PLAIN_SECONDS):
        plain = _Beside()
        _write_once(step, folder / "plain", num_bytes, over, plain)
        figures.append(
            Figure(
                f"steps while a thread writes {gigabytes:.2f} GB in {over:.0f} s and syncs, "
                "slower by",
                f"{plain.slower:.0%}",
                detail=plain.means,
            )
        )
    return figures


def _share_figures(beside: _Beside, share: float | None, gigabytes: float) -> list[Figure]:
    name = "by default" if share is None else f"share {share:g}"
    is_default = share is None
    return [
        Figure(
            f"steps during saves of {gigabytes:.2f} GB, {name}, slower by",
            f"{beside.slower:.0%}",
            f"<= {MOST_SLOWER:.0%}" if is_default else None,
            beside.slower <= MOST_SLOWER if is_default else None,
            beside.means,
        ),
        Figure(
            f"{name}: median step without and during a save",
            _pair(median(beside.plain), median(beside.steps)),
        ),
        Figure(
            f"{name}: 99th of 100 steps without and during a save",
            _pair(_late(beside.plain), _late(beside.steps)),
        ),
        Figure(
            f"{name}: duration of a save",
            f"{median(beside.seconds):.1f} s, {gigabytes / median(beside.seconds):.2f} GB/s",
            detail=f"{len(beside.steps) // len(beside.seconds)} steps during each, "
            f"{beside.work_seconds / len(beside.seconds):.1f} s of processor time",
        ),
    ]


@dataclass
class _Beside:
    """Seconds of steps without and with other work, measured alternately."""

    plain: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    work_seconds: float = 0.0

    @property
    def slower(self) -> float:
        return fmean(self.steps) / fmean(self.plain) - 1

    @property
    def means(self) -> str:
        return (
            f"{fmean(self.plain) * 1e3:.1f} ms without, {fmean(self.steps) * 1e3:.1f} ms with the other "
            "work, mean"
        )


def _save_once(
    container: StepContainer,
    step: Callable[[], None],
    url: str,
    share: float | None,
    beside: _Beside,
) -> None:
    """Runs steps without a save, during one, and without it again."""
    beside.plain += [_timed(step) for _ in range(_ALONE)]
    worked = container.saves.counters.work_seconds
    begin = time.perf_counter()
    task = container.save(url, blocking=False, options=SaveOptions(share=share))
    # The time during which tables are frozen is part of the slowdown.
    frozen = time.perf_counter() - begin
    during = []
    while not task.done():
        during.append(_timed(step))
    during[0] += frozen
    beside.steps += during
    beside.seconds.append(task.result(60.0).seconds)
    container.saves.join()
    beside.work_seconds += container.saves.counters.work_seconds - worked
    beside.plain += [_timed(step) for _ in range(_ALONE)]
    shutil.rmtree(url)


def _write_once(
    step: Callable[[], None], path: Path, num_bytes: int, seconds: float, beside: _Beside
) -> None:
    """The same while a thread only writes as many bytes at a constant rate, and syncs them."""
    beside.plain += [_timed(step) for _ in range(_ALONE)]
    thread = threading.Thread(target=_write_plainly, args=(path, num_bytes, seconds))
    thread.start()
    while thread.is_alive():
        beside.steps.append(_timed(step))
    beside.plain += [_timed(step) for _ in range(_ALONE)]
    path.unlink()


def _write_plainly(path: Path, num_bytes: int, seconds: float) -> None:
    piece = os.urandom(_PIECE_BYTES)
    begin = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for written in range(0, num_bytes, _PIECE_BYTES):
            file.write(piece)
            ahead = begin + seconds * written / num_bytes - time.perf_counter()
            time.sleep(max(0.0, ahead))
        os.fsync(file.fileno())


def _late(steps: list[float]) -> float:
    return float(np.quantile(steps, 0.99))


def _pair(alone: float, beside: float) -> str:
    return f"{alone * 1e3:.1f} ms, {beside * 1e3:.1f} ms"


def _timed(step: Callable[[], None]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin
