"""Rows of a snapshot over its chain of deltas: of each key the newest, none that is erased.

A key is in the result once. For that, keys are remembered while a window of partitions is read;
windows are so small that the keys of one stay within `_WINDOW_KEYS`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.results import Keys, ScanChunk
from sparring.errors import InvalidArgumentError
from sparring.runtime.threads import read_ahead
from sparring.snapshot.file_errors import damaged
from sparring.snapshot.format.limits import BLOCK_BYTES, NUM_PARTITIONS
from sparring.snapshot.format.manifest import FileEntry
from sparring.snapshot.reader import Snapshot

__all__ = ["count_rows", "merged_chunks"]

_WINDOW_KEYS = 8_000_000
"""64 MiB of keys, and as much again to sort them."""

Partitions = npt.NDArray[np.bool_]
"""``(4096,)``: which are wanted."""


def merged_chunks(
    snapshot: Snapshot,
    table: str,
    partitions: Iterable[int] | None = None,
    chunk_rows: int = 65_536,
) -> Iterator[ScanChunk]:
    """Streams the rows of a table: of each key the newest over the chain, none that is erased.

    Only files that may hold wanted partitions are read, and each block is verified before any byte
    of it is used. Repeated keys show only after the rows around them, so do not keep rows before the
    iterator has ended.

    Args:
        snapshot: whose chain is read.
        table: its name.
        partitions: those wanted, 0 to 4,095; None: all.
        chunk_rows: the most rows of a chunk.

    Raises:
        UnknownTableError: no such table.
        InvalidArgumentError: a partition or `chunk_rows` out of range.
        SnapshotDamagedError: a file is damaged, named with the offset, or a key is
            there twice.
        SnapshotIOError: the file system failed.
    """
    snapshot.check_table(table)
    wanted = _wanted(partitions)
    if chunk_rows < 1:
        raise InvalidArgumentError(f"chunk_rows must be at least 1, found {chunk_rows}")
    return _cut(_merged(snapshot.chain, table, wanted), chunk_rows)


def count_rows(snapshot: Snapshot, table: str) -> int:
    """The number of rows of a table. Of a delta, all keys of its chain are read.

    Raises:
        UnknownTableError: no such table.
        SnapshotDamagedError: of a delta: a file is damaged.
    """
    snapshot.check_table(table)
    if snapshot.base is None:
        return sum(entry.num_keys for entry in snapshot.files(table, "rows"))
    return sum(map(len, merged_chunks(snapshot, table)))


def _merged(chain: Sequence[Snapshot], table: str, wanted: Partitions) -> Iterator[ScanChunk]:
    total = sum(
        entry.num_keys
        for snapshot in chain
        for entry in snapshot.files(table)
        if _overlaps(entry, wanted)
    )
    num_windows = 1
    while total > num_windows * _WINDOW_KEYS and num_windows < NUM_PARTITIONS:
        num_windows *= 2
    size = NUM_PARTITIONS // num_windows
    for begin in range(0, NUM_PARTITIONS, size):
        window = np.zeros(NUM_PARTITIONS, np.bool_)
        window[begin : begin + size] = wanted[begin : begin + size]
        if window.any():
            yield from _merged_window(chain, table, window)


def _merged_window(
    chain: Sequence[Snapshot], table: str, window: Partitions
) -> Iterator[ScanChunk]:
    newer: Keys = np.empty(0, np.int64)
    for place, snapshot in enumerate(chain):
        if table not in snapshot.own_tables:
            continue
        is_oldest = place == len(chain) - 1
        found: list[Keys] = []
        parts = _parts(snapshot, table, "rows", window)
        for part in read_ahead(parts) if _is_worth_a_thread(snapshot, table) else parts:
            # A copy: a view would keep the rows in memory too.
            found.append(part.keys.copy())
            kept = _without(part, newer)
            del part
            if len(kept):
                yield kept
            del kept
        keys = _sorted_unique(found, snapshot, table)
        if is_oldest:
            return
        erased = [part.keys.copy() for part in _parts(snapshot, table, "erased", window)]
        newer = np.unique(np.concatenate([newer, keys, *erased]))


def _parts(
    snapshot: Snapshot, table: str, kind: str, window: Partitions
) -> Generator[ScanChunk, None, None]:
    """Rows or erased keys of these partitions, from the files of a kind."""
    for entry in snapshot.files(table, kind):
        if _overlaps(entry, window):
            for chunk in snapshot.segments(entry, window):
                yield _within(chunk, window, entry)
                del chunk


def _is_worth_a_thread(snapshot: Snapshot, table: str) -> bool:
    return sum(entry.size_bytes for entry in snapshot.files(table, "rows")) > BLOCK_BYTES


def _overlaps(entry: FileEntry, wanted: Partitions) -> bool:
    return bool(wanted[entry.partitions[0] : entry.partitions[1]].any())


def _within(chunk: ScanChunk, window: Partitions, entry: FileEntry) -> ScanChunk:
    if window[entry.partitions[0] : entry.partitions[1]].all():
        return chunk
    return _chosen(chunk, window[_native.partition(chunk.keys)])


def _without(chunk: ScanChunk, newer: Keys) -> ScanChunk:
    """The rows whose keys are not in `newer`, which is sorted."""
    if not len(newer):
        return chunk
    places = np.minimum(np.searchsorted(newer, chunk.keys), len(newer) - 1)
    return _chosen(chunk, newer[places] != chunk.keys)


def _chosen(chunk: ScanChunk, is_chosen: npt.NDArray[np.bool_]) -> ScanChunk:
    if is_chosen.all():
        return chunk
    return ScanChunk(chunk.keys[is_chosen], chunk.rows[is_chosen], chunk.scores[is_chosen])


def _sorted_unique(found: list[Keys], snapshot: Snapshot, table: str) -> Keys:
    keys: Keys = np.concatenate([np.empty(0, np.int64), *found])
    keys.sort()
    repeated = np.flatnonzero(keys[1:] == keys[:-1])
    if len(repeated):
        raise damaged(
            snapshot.url,
            f"table {table!r}",
            0,
            f"key {int(keys[repeated[0]])} is there more than once",
        )
    return keys


def _wanted(partitions: Iterable[int] | None) -> Partitions:
    if partitions is None:
        return np.ones(NUM_PARTITIONS, np.bool_)
    given = np.asarray(
        partitions if isinstance(partitions, np.ndarray) else list(partitions)
    ).reshape(-1)
    if len(given) and (
        given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= NUM_PARTITIONS
    ):
        raise InvalidArgumentError(
            f"partitions must be whole numbers from 0 to {NUM_PARTITIONS - 1}, found {given}"
        )
    wanted = np.zeros(NUM_PARTITIONS, np.bool_)
    wanted[given.astype(np.int64)] = True
    return wanted


def _cut(chunks: Iterator[ScanChunk], chunk_rows: int) -> Iterator[ScanChunk]:
    for chunk in chunks:
        if len(chunk) <= chunk_rows:
            yield chunk
            continue
        for begin in range(0, len(chunk), chunk_rows):
            part = slice(begin, begin + chunk_rows)
            yield ScanChunk(chunk.keys[part], chunk.rows[part], chunk.scores[part])
