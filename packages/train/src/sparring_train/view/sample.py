"""Samples of the rows of a snapshot, read from a few segments of its files.

Partitions are ranges of a hash of the key, so the rows of some partitions are a random sample of a table.
Of a large file, only some segments are read, at equal distances, because a storage may write rows in
the order of their keys. Of deltas, all rows of these partitions are read, because they replace rows of
the base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import ScanChunk, Snapshot, scan_rows
from sparring.contracts import NUM_PARTITIONS, partition

__all__ = ["SAMPLE_ROWS", "RowSample", "sample_rows"]

SAMPLE_ROWS = 3_000
"""Maximum number of rows in a sample."""

_READ_BYTES = 16 << 20
"""Approximate number of bytes of a full snapshot that are read for a sample."""

_LEAST_PARTITIONS = 256
"""Partitions per file of a large table, so that fewer partitions would not need fewer files."""

_SEED = 7

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowSample:
    """Some rows of a table.

    Args:
        chunk: The rows.
        num_rows: Number of rows of the table: exact for a full snapshot, otherwise an estimate.
        is_exact: Whether `num_rows` is exact.
    """

    chunk: ScanChunk
    num_rows: int
    is_exact: bool


def sample_rows(snapshot: Snapshot, table: str, most: int = SAMPLE_ROWS) -> RowSample:
    """Reads a sample of the rows of a table. The same snapshot always gives the same sample.

    Args:
        snapshot: Snapshot whose chain is read.
        table: Name of the table.
        most: Maximum number of rows.

    Raises:
        UnknownTableError: The snapshot has no such table.
        SnapshotDamagedError: A file is damaged.
        SnapshotIOError: The file system failed.
    """
    snapshot.check_table(table)
    total = _count_first_columns(snapshot, table)
    wanted = _choose_partitions(total, most)
    chain = [each for each in snapshot.chain if table in each.own_tables]
    files = [entry for each in chain for entry in each.files(table)]
    if any(entry.columns is not None for entry in files):
        # The rows of different blocks of columns must have equal keys.
        chunks = [_copy(each) for each in scan_rows(snapshot, table, np.flatnonzero(wanted))]
        share = wanted.sum() / NUM_PARTITIONS
    else:
        chunks, share = _read_chain(chain, table, wanted)
    chunk = _join(chunks, snapshot, table)
    is_exact = snapshot.base is None
    num_rows = total if is_exact else round(len(chunk.keys) / share) if share else 0
    if len(chunk.keys) > most:
        chosen = np.random.default_rng(_SEED).choice(len(chunk.keys), most, replace=False)
        chosen.sort()
        chunk = ScanChunk(chunk.keys[chosen], chunk.rows[chosen], chunk.scores[chosen])
    return RowSample(chunk, num_rows, is_exact)


def _count_first_columns(snapshot: Snapshot, table: str) -> int:
    """Returns the number of rows in all files of the chain, at least the number of rows of the table."""
    return sum(
        entry.num_keys
        for each in snapshot.chain
        for entry in each.files(table, "rows")
        if not (entry.columns or (0, 0))[0]
    )


def _choose_partitions(total: int, most: int) -> npt.NDArray[np.bool_]:
    """Returns a mask of the first partitions that contain at least `most` rows."""
    count = _LEAST_PARTITIONS
    while count < NUM_PARTITIONS and total * count < 2 * most * NUM_PARTITIONS:
        count *= 2
    wanted = np.zeros(NUM_PARTITIONS, np.bool_)
    wanted[:count] = True
    return wanted


def _read_chain(
    chain: Sequence[Snapshot], table: str, wanted: npt.NDArray[np.bool_]
) -> tuple[list[ScanChunk], float]:
    """Returns a sample of the newest rows of the requested partitions, and its share of all rows."""
    count = int(wanted.sum())
    if not chain:
        return [], 1.0
    base = chain[-1]
    entries = _overlapping(base, table, "rows", count)
    size = sum(entry.size_bytes for entry in entries)
    every = max(1, size // _READ_BYTES)
    found = [
        _select(each, wanted) for entry in entries for each in base.segments(entry, wanted, every)
    ]
    inside = sum(
        entry.num_keys * min(1.0, count / (entry.partitions[1] - entry.partitions[0]))
        for entry in entries
    )
    share = min(1.0, sum(len(each.keys) for each in found) / inside) if every > 1 else 1.0
    generator = np.random.default_rng(_SEED)
    kept: list[ScanChunk] = []
    newer: Keys = np.empty(0, np.int64)
    for each in chain[:-1]:
        own = [
            _select(chunk, wanted)
            for entry in _overlapping(each, table, "rows", count)
            for chunk in each.segments(entry, wanted)
        ]
        for chunk in own:
            is_kept = ~np.isin(chunk.keys, newer) & (generator.random(len(chunk.keys)) < share)
            kept.append(_take(chunk, is_kept))
        erased = [
            chunk.keys[wanted[partition(chunk.keys)]]
            for entry in _overlapping(each, table, "erased", count)
            for chunk in each.segments(entry, wanted)
        ]
        newer = np.unique(np.concatenate([newer, *(part.keys for part in own), *erased]))
    kept += [_take(chunk, ~np.isin(chunk.keys, newer)) for chunk in found]
    return kept, share * count / NUM_PARTITIONS


def _overlapping(snapshot: Snapshot, table: str, kind: str, count: int) -> list[Any]:
    return [entry for entry in snapshot.files(table, kind) if entry.partitions[0] < count]


def _select(chunk: ScanChunk, wanted: npt.NDArray[np.bool_]) -> ScanChunk:
    return _take(chunk, wanted[partition(chunk.keys)])


def _take(chunk: ScanChunk, is_chosen: npt.NDArray[np.bool_]) -> ScanChunk:
    return ScanChunk(chunk.keys[is_chosen], chunk.rows[is_chosen], chunk.scores[is_chosen])


def _copy(chunk: ScanChunk) -> ScanChunk:
    return ScanChunk(chunk.keys.copy(), chunk.rows.copy(), chunk.scores.copy())


def _join(chunks: Sequence[ScanChunk], snapshot: Snapshot, table: str) -> ScanChunk:
    config = snapshot.tables[table].config
    return ScanChunk(
        np.concatenate([np.empty(0, np.int64), *(each.keys for each in chunks)]),
        np.concatenate(
            [np.empty((0, config.width), config.numpy_dtype), *(each.rows for each in chunks)]
        ),
        np.concatenate([np.empty(0, np.uint64), *(each.scores for each in chunks)]),
    )
