"""Small snapshots that are saved in milliseconds and whose contents can be verified."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sparring import Snapshot, SnapshotWriter, TableDescription, scan_rows
from sparring.contracts import ScanChunk, TableConfig
from sparring.snapshot.retention import latest_snapshot
from sparring.snapshot.row_router import SnapshotOptions

__all__ = ["check", "check_latest", "save", "scratch_folder"]

TABLE = TableDescription.of(
    TableConfig("item", 4, state_width=1, state_method="rowwise_adagrad"), has_scores=True
)
NUM_KEYS = 240
_CHUNK_ROWS = 80
_OPTIONS = SnapshotOptions(num_ranges=2, file_bytes=4_000, buffer_bytes=6_000, small_bytes=1_000)


@contextmanager
def scratch_folder(*, in_memory: bool = False) -> Iterator[Path]:
    """Creates a folder that is removed with its contents.

    Args:
        in_memory: whether to use a file system in memory, if there is one. A killed process loses no
            data that it has written to either, and memory needs no time to sync.
    """
    memory = Path("/dev/shm")
    parent = memory if in_memory and memory.is_dir() else None
    path = Path(tempfile.mkdtemp(prefix="sparring-reliability-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _rows_of(step: int, keys: np.ndarray) -> np.ndarray:
    return ((keys[:, None] * 31 + np.arange(TABLE.width) + step * 7) % 1009).astype(np.float32)


def save(folder: Path, step: int, *, base: str | None = None) -> Snapshot:
    """Saves all keys as of `step`; a delta contains those with even numbers, and erases key 1.

    Aborts the attempt if an operation fails.
    """
    writer = SnapshotWriter(
        str(folder / f"step-{step:09d}"), step=step, base=base, options=_OPTIONS
    )
    try:
        keys = np.arange(0, NUM_KEYS, 1 if base is None else 2, dtype=np.int64)
        chunks = (
            ScanChunk(part, _rows_of(step, part), np.full(len(part), step, np.uint64))
            for part in np.array_split(keys, -(-len(keys) // _CHUNK_ROWS))
        )
        writer.write_table(TABLE, chunks, [] if base is None else [np.array([1])])
        writer.write_state("optimizer", {"step": step}, {"moment": np.arange(4) + step})
        writer.finish()
        return writer.commit()
    except BaseException:
        writer.abandon()
        raise


def check(snapshot: Snapshot) -> None:
    """Reads a whole snapshot.

    Raises:
        AssertionError: its contents differ from those that `save` wrote.
        SnapshotError: it cannot be read.
    """
    steps = {0: snapshot.step, 1: snapshot.step}
    expected = set(range(NUM_KEYS))
    if snapshot.base is not None:
        steps[1] = snapshot.base.step
        expected -= {1}
    found: set[int] = set()
    for chunk in scan_rows(snapshot, "item"):
        for parity, step in steps.items():
            part = chunk.keys % 2 == parity
            assert (chunk.rows[part] == _rows_of(step, chunk.keys[part])).all(), "other rows"
            assert (chunk.scores[part] == step).all(), "other scores"
        found |= set(chunk.keys.tolist())
    assert found == expected, f"{len(found)} keys"
    state = snapshot.state("optimizer")
    assert state.values == {"step": snapshot.step}, "other state"
    assert (state.arrays["moment"] == np.arange(4) + snapshot.step).all(), "other state"


def check_latest(
    folder: Path, acknowledged: int, check_snapshot: Callable[[Snapshot], None] = check
) -> str:
    """Returns what is wrong with the latest snapshot of a folder; empty if it is correct.

    Args:
        folder: a folder of snapshots.
        acknowledged: the last step whose `commit` returned; 0 for none.
        check_snapshot: raises an error if a snapshot is wrong.
    """
    try:
        latest = latest_snapshot(folder)
        found = 0 if latest is None else latest.step
        if found < acknowledged:
            return f"step {acknowledged} was acknowledged, the latest snapshot is of {found}"
        if latest is not None:
            check_snapshot(latest)
    # The report should contain any error.
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
