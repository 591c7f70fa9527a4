"""Saving and loading a snapshot, compared with sequential writing and reading on the same disk.

Two cases are measured: the snapshot writer and reader alone, from arrays and discarding the result; and
`container.save` and `container.load`, from an hkv table and into an empty one. The reference writes the
same bytes, keys and rows, to one file in large pieces and syncs it, and reads that file in large pieces.
Reading is cold: the written data are dropped from the page cache. A table keeps loaded rows in newly
allocated memory, so `container.load` has a second reference that reads the file into such memory. The
additional memory of saving and loading is the growth of the resident set while they run.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.measuring import Figure
from benchmarks.scale import Scale
from sparring import (
    SnapshotWriter,
    StepContainer,
    StorageChoice,
    TableDescription,
    open_snapshot,
    scan_rows,
)
from sparring.contracts import ScanChunk, TableConfig

__all__ = ["measure"]

NUM_ROWS_OF_CONTAINER = 2_000_000
DIM, NUM_ROWS, CHUNK_ROWS, ROUNDS = 64, 5_000_000, 65_536, 5
PIECE_BYTES = 4 << 20
BAR, MEMORY_BAR_BYTES = 0.7, 256 << 20
TABLE = TableDescription.of(TableConfig("item", DIM))


class _Table:
    """A table in memory, streamed in the order of hashes, like a storage."""

    def __init__(self, num_rows: int) -> None:
        self.keys = np.random.default_rng(0).permutation(num_rows).astype(np.int64)
        self.rows = np.empty((num_rows, DIM), np.float32)
        self.rows[:] = np.arange(num_rows, dtype=np.float32)[:, None]
        self.scores = np.zeros(num_rows, np.uint64)

    @property
    def size_bytes(self) -> int:
        return self.keys.nbytes + self.rows.nbytes

    def chunks(self) -> Iterator[ScanChunk]:
        for begin in range(0, len(self.keys), CHUNK_ROWS):
            part = slice(begin, begin + CHUNK_ROWS)
            yield ScanChunk(self.keys[part], self.rows[part], self.scores[part])


@dataclass(frozen=True)
class _Contender:
    """One way to save and load a table."""

    name: str
    save: Callable[[Path], str]
    load: Callable[[Path], str]
    loaded_bytes: list[int] = field(default_factory=list)
    """Memory of the tables into which rows were loaded, if there were any."""
    keeps: bool = False
    """Whether it keeps the loaded rows."""


def measure(scale: Scale) -> list[Figure]:
    """Measures speedups over the reference, and additional memory."""
    parent = os.environ.get("SPARRING_BENCHMARK_DISK")
    folder = Path(tempfile.mkdtemp(prefix="sparring-benchmark-", dir=parent))
    rounds = scale.rounds(ROUNDS)
    try:
        table = _Table(scale.rows(NUM_ROWS))
        alone = _Contender("", partial(_save, table), partial(_load, table))
        figures = _measure(table, alone, folder, rounds)
        # In addition to the arrays, there must be memory for the table and for the loaded one.
        table = _Table(scale.rows(NUM_ROWS_OF_CONTAINER))
        with _container() as container:
            storage = container.storage("item")
            for chunk in table.chunks():
                storage.upsert(chunk.keys, chunk.rows)
            loaded_bytes: list[int] = []
            whole = _Contender(
                "container.",
                partial(_save_container, container),
                partial(_load_container, table, loaded_bytes),
                loaded_bytes,
                keeps=True,
            )
            return figures + _measure(table, whole, folder, rounds)
    finally:
        shutil.rmtree(folder)


def _measure(table: _Table, contender: _Contender, folder: Path, rounds: int) -> list[Figure]:
    seconds: dict[str, list[float]] = {
        name: [] for name in ("write", "save", "read", "read and keep", "load")
    }
    memory = dict.fromkeys(seconds, 0)
    for number in range(rounds + 1):
        plain, snapshot = folder / f"plain-{number}", folder / f"step-{number}"
        took: dict[str, float] = {}
        writes = [partial(_write, table, plain), partial(contender.save, snapshot)]
        reads = [partial(_read, plain), partial(contender.load, snapshot)]
        if contender.keeps:
            reads.insert(1, partial(_read_and_keep, plain))
        # They alternate in being first, because the second one finds different caches.
        for run in writes[:: 1 - 2 * (number % 2)]:
            _timed(run, took, memory)
            _drop_from_cache(folder)
        if not number:
            _check(table, snapshot)
            _drop_from_cache(folder)
        for run in reads[:: 1 - 2 * (number % 2)]:
            _timed(run, took, memory)
            _drop_from_cache(folder)
        # The first round is a warm-up of memory and disk.
        if number or rounds == 1:
            for name, each in took.items():
                seconds[name].append(each)
        plain.unlink()
        shutil.rmtree(snapshot)
    compared = [("save", "write", "written"), ("load", "read", "read")]
    if contender.keeps:
        compared.append(("load", "read and keep", "read into memory that is kept"))
    figures = [
        _speed(table, contender, ours, what, seconds[theirs], seconds[ours])
        for ours, theirs, what in compared
    ]
    for ours in ("save", "load"):
        loaded = max(contender.loaded_bytes, default=0) if ours == "load" else 0
        figures.append(
            Figure(
                what=f"memory that {contender.name}{ours} needs in addition to the table",
                value=f"{(memory[ours] - loaded) / 1e6:.0f} MB",
                bar=f"<= {MEMORY_BAR_BYTES / 1e6:.0f} MB",
                is_reached=memory[ours] - loaded <= MEMORY_BAR_BYTES,
                detail="increase of the resident set"
                + (", minus the loaded table" if loaded else ""),
            )
        )
    return figures


def _speed(
    table: _Table,
    contender: _Contender,
    name: str,
    what: str,
    theirs: list[float],
    ours: list[float],
) -> Figure:
    giga = table.size_bytes / 1e9
    ratio = median(their / our for their, our in zip(theirs, ours, strict=True))
    return Figure(
        what=f"{contender.name}{name} {giga:.1f} GB, speed relative to plain bytes that are {what}",
        value=f"{ratio:.2f}",
        bar=f">= {BAR}",
        is_reached=ratio >= BAR,
        detail=f"{giga / median(ours):.2f} GB/s; one plain file {giga / median(theirs):.2f} GB/s",
        ratio=ratio,
    )


def _timed(run: Callable[[], str], took: dict[str, float], memory: dict[str, int]) -> None:
    """Records the seconds, and the additional memory, under the name that `run` returns."""
    before = peak = _resident_bytes()
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.02):
            peak = max(peak, _resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    name = run()
    took[name] = time.perf_counter() - begin
    ended.set()
    watcher.join()
    memory[name] = max(memory[name], peak - before)


def _write(table: _Table, path: Path) -> str:
    with path.open("wb", buffering=0) as file:
        for array in (table.keys, table.rows):
            data = memoryview(array).cast("B")
            for begin in range(0, len(data), PIECE_BYTES):
                file.write(data[begin : begin + PIECE_BYTES])
        os.fsync(file.fileno())
    return "write"


def _save(table: _Table, path: Path) -> str:
    writer = SnapshotWriter(str(path), step=1)
    writer.write_table(TABLE, table.chunks())
    writer.finish()
    writer.commit()
    return "save"


def _read(path: Path) -> str:
    buffer = bytearray(PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return "read"


def _read_and_keep(path: Path) -> str:
    size = path.stat().st_size
    with mmap.mmap(-1, size) as memory, path.open("rb", buffering=0) as file:
        # As tables request it.
        memory.madvise(mmap.MADV_HUGEPAGE)
        with memoryview(memory) as kept:
            at = 0
            while at < size:
                at += file.readinto(kept[at : at + PIECE_BYTES])
    return "read and keep"


def _load(table: _Table, path: Path) -> str:
    count = sum(map(len, scan_rows(open_snapshot(path), "item")))
    assert count == len(table.keys)
    return "load"


def _container() -> StepContainer:
    container = StepContainer()
    container.declare(TableConfig("item", DIM), StorageChoice("hkv"))
    return container


def _save_container(container: StepContainer, path: Path) -> str:
    container.save(str(path))
    return "save"


def _load_container(table: _Table, loaded_bytes: list[int], path: Path) -> str:
    with _container() as container:
        assert container.load(str(path)).rows["item"] == len(table.keys)
        loaded_bytes.append(container.table_bytes("item"))
    return "load"


def _check(table: _Table, path: Path) -> None:
    """Checks that the loaded rows equal the saved ones."""
    places = np.empty(len(table.keys), np.int64)
    places[table.keys] = np.arange(len(table.keys))
    count = 0
    for chunk in scan_rows(open_snapshot(path), "item"):
        assert (chunk.rows == table.rows[places[chunk.keys]]).all()
        count += len(chunk)
    assert count == len(table.keys)


def _drop_from_cache(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_dir():
            continue
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
