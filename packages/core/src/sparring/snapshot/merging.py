"""The rows of a chain of snapshots: of each key the newest, those erased left out.

A key is in the result once. To see to that, keys are kept while a window of partitions is read;
windows are as small as it takes for the keys of one to stay within `_WINDOW_KEYS`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.snapshot.limits import BLOCK_BYTES, NUM_PARTITIONS
from sparring.snapshot.manifest import FileEntry
from sparring.snapshot.reading_ahead import read_ahead
from sparring.snapshot.reporting import damaged
from sparring.storage.contract import Keys, ScanChunk

if TYPE_CHECKING:
    from sparring.snapshot.reading import Snapshot

__all__ = ["merged_chunks"]

_WINDOW_KEYS = 8_000_000
"""64 MiB of keys, and as much again to sort them."""

Partitions = npt.NDArray[np.bool_]
"""``(4096,)``: which are wanted."""


def merged_chunks(chain: Sequence[Snapshot], table: str, wanted: Partitions) -> Iterator[ScanChunk]:
    """The rows of a table over a chain.

    Args:
        chain: the newest snapshot first, each the delta over the next, a full one last.
        table: that each of them has, or not.
        wanted: partitions.

    Raises:
        SnapshotDamagedError: a file is not what was written, or a key is there twice. Then no
            chunk after it is given, and those before it should not be kept.
        SnapshotIOError: the file system failed.
    """
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
            # A copy: a view would keep the rows beside the keys in memory too.
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
    """What the files of a kind hold of these partitions."""
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
