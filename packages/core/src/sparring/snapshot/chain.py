"""Reads the rows of a snapshot and its chain of deltas: the newest row of each key, without erased keys.

To return each key once, the reader remembers keys. It reads one window of partitions after the
other, and remembers only the keys of that window, at most about `_WINDOW_KEYS`.

A file may contain a block of columns only, and a delta may use different blocks than its base. In
this case the columns are split wherever a block of any file begins or ends. Each part of the
columns is read separately, and the rows of the parts are joined by key in each window.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.storage.column_block import ColumnBlock
from sparring.contracts.storage.results import Keys, ScanChunk
from sparring.errors import InvalidArgumentError
from sparring.runtime.threads import read_ahead
from sparring.snapshot.format.manifest import (
    BLOCK_BYTES,
    NUM_PARTITIONS,
    FileEntry,
)
from sparring.snapshot.place.place import damaged_error
from sparring.snapshot.reader import Snapshot

__all__ = ["count_rows", "scan_rows", "scan_own_rows"]

_WINDOW_KEYS = 8_000_000
"""64 MiB of keys, and the same amount again for sorting them."""

_JOIN_BYTES = 256 << 20
"""Size of a window of rows that are joined from blocks of columns. Joining uses about three times as much
memory."""

Partitions = npt.NDArray[np.bool_]
"""``(4096,)``: True for each requested partition."""


def scan_rows(
    snapshot: Snapshot,
    table: str,
    partitions: Iterable[int] | None = None,
    chunk_rows: int = 65_536,
    columns: ColumnBlock | None = None,
) -> Iterator[ScanChunk]:
    """Yields the newest row of each key of a table over the chain of snapshots, without erased keys.

    Reads only the files that can contain the requested partitions, and verifies each block before it
    uses any of its bytes. A repeated key is detected only after rows next to it were yielded, so do not
    keep the rows if the iterator raises.

    Args:
        snapshot: Snapshot whose chain is read.
        table: Name of the table.
        partitions: Requested partitions, 0 to 4,095; None for all.
        chunk_rows: Maximum number of rows per chunk.
        columns: Columns to read, in the layout of `ColumnBlock.table_of`; None for whole rows.

    Raises:
        UnknownTableError: The snapshot has no such table.
        InvalidArgumentError: A partition, a column or `chunk_rows` is out of range.
        SnapshotDamagedError: A file is damaged (the error contains its name and the offset), a key
            occurs twice, or a key has only some of its columns.
        SnapshotIOError: The file system failed.

    Examples:
        >>> import tempfile
        >>> from sparring import StepContainer, TableConfig, open_snapshot, scan_rows
        >>> with tempfile.TemporaryDirectory() as folder, StepContainer() as container:
        ...     container.declare(TableConfig("user", dim=2))
        ...     container.assign("user", [1, 2, 3], [[0, 1], [2, 3], [4, 5]])
        ...     saved = container.save(f"{folder}/step-000000000")
        ...     chunks = list(scan_rows(open_snapshot(saved.url), "user"))
        >>> {int(key): row.tolist() for key, row in zip(chunks[0].keys, chunks[0].rows)}[2]
        [2.0, 3.0]
    """
    snapshot.check_table(table)
    wanted = _partition_mask(partitions)
    if chunk_rows < 1:
        raise InvalidArgumentError(
            f"scan of {snapshot.url}: chunk_rows must be at least 1, found {chunk_rows}; omit it"
        )
    asked = columns or ColumnBlock(0, snapshot.tables[table].dim)
    if not 0 <= asked.begin < asked.end <= snapshot.tables[table].dim:
        raise InvalidArgumentError(
            f"columns of table {table!r} must be within 0 to {snapshot.tables[table].dim - 1}, "
            f"found {asked}; pass None to read all of them",
            table=table,
        )
    return _split_chunks(_scan_columns(snapshot.chain, table, wanted, asked), chunk_rows)


def scan_own_rows(
    snapshot: Snapshot, table: str, partitions: Iterable[int] | None = None
) -> Iterator[ScanChunk]:
    """Yields the whole rows in a snapshot's own files, without its base.

    Args:
        snapshot: Snapshot to read. For a delta these are the rows that it changed.
        table: Name of the table.
        partitions: Requested partitions; None for all.

    Raises:
        SparringError: Under the same conditions as `scan_rows`.
    """
    snapshot.check_table(table)
    asked = ColumnBlock(0, snapshot.tables[table].dim)
    return _scan_columns([snapshot], table, _partition_mask(partitions), asked)


def count_rows(snapshot: Snapshot, table: str) -> int:
    """Returns the number of rows of a table. For a delta, this reads all keys of its chain.

    Args:
        snapshot: Snapshot whose chain is counted.
        table: Name of the table.

    Raises:
        UnknownTableError: The snapshot has no such table.
        SnapshotDamagedError: The snapshot is a delta, and a file of its chain is damaged.

    Examples:
        >>> import tempfile
        >>> from sparring import StepContainer, TableConfig, count_rows, open_snapshot
        >>> with tempfile.TemporaryDirectory() as folder, StepContainer() as container:
        ...     container.declare(TableConfig("user", dim=2))
        ...     container.assign("user", [1, 2, 3], [[0, 1], [2, 3], [4, 5]])
        ...     saved = container.save(f"{folder}/step-000000000")
        ...     count_rows(open_snapshot(saved.url), "user")
        3
    """
    snapshot.check_table(table)
    if snapshot.base is None:
        firsts = [each for each in snapshot.files(table, "rows") if not (each.columns or (0, 0))[0]]
        return sum(entry.num_keys for entry in firsts)
    return sum(map(len, scan_rows(snapshot, table)))


def _scan_columns(
    chain: Sequence[Snapshot], table: str, wanted: Partitions, asked: ColumnBlock
) -> Iterator[ScanChunk]:
    """Yields the requested columns of rows, from files with any blocks of columns."""
    blocks = _split_columns(chain, table, asked)
    if len(blocks) == 1:
        return _merge(chain, table, wanted, asked)
    return _join_blocks(chain, table, wanted, blocks)


def _split_columns(chain: Sequence[Snapshot], table: str, asked: ColumnBlock) -> list[ColumnBlock]:
    """Splits the requested columns wherever a block of any file begins or ends."""
    ends = {
        end
        for snapshot in chain
        for entry in snapshot.files(table)
        for end in entry.columns or ()
        if asked.begin < end < asked.end
    }
    cuts = sorted({asked.begin, *ends, asked.end})
    return [ColumnBlock(begin, end) for begin, end in itertools.pairwise(cuts)]


def _join_blocks(
    chain: Sequence[Snapshot], table: str, wanted: Partitions, blocks: Sequence[ColumnBlock]
) -> Iterator[ScanChunk]:
    """Joins rows of adjacent blocks of columns; keys ascend within each window."""
    snapshot, asked = chain[0], ColumnBlock(blocks[0].begin, blocks[-1].end)
    own = asked.table_of(snapshot.tables[table].config)
    total = _num_keys(chain, table, wanted, blocks[0])
    for window in _split_partitions(wanted, total, max(1, _JOIN_BYTES // own.row_bytes)):
        keys: Keys = np.empty(0, np.int64)
        rows, scores = np.empty((0, own.width), own.numpy_dtype), np.empty(0, np.uint64)
        for number, block in enumerate(blocks):
            parts = [
                (each.keys.copy(), each.rows.copy(), each.scores.copy())
                for each in _merge(chain, table, window, block)
            ]
            if not parts and not len(keys) and not number:
                continue
            found = [np.concatenate(each) for each in zip(*parts, strict=True)] if parts else []
            order = np.argsort(found[0]) if found else np.empty(0, np.int64)
            if number == 0:
                keys, scores = found[0][order], found[2][order]
                rows = np.zeros((len(keys), own.width), own.numpy_dtype)
            _check_same_keys(snapshot, table, keys, found[0][order] if found else order, block)
            if found:
                place = ColumnBlock(block.begin - asked.begin, block.end - asked.begin)
                place.put(own, rows, np.ascontiguousarray(found[1][order]))
                scores = np.maximum(scores, found[2][order])
        if len(keys):
            yield ScanChunk(keys, rows, scores)


def _check_same_keys(
    snapshot: Snapshot, table: str, keys: Keys, found: Keys, block: ColumnBlock
) -> None:
    if np.array_equal(keys, found):
        return
    alone = np.setxor1d(keys, found)
    raise damaged_error(
        snapshot.url,
        f"table {table!r}",
        0,
        f"{len(alone)} keys, for example {int(alone[0])}, have only some of their columns: columns "
        f"{block.begin} to {block.end - 1} are stored for other keys than the columns before them",
    )


def _num_keys(chain: Sequence[Snapshot], table: str, wanted: Partitions, block: ColumnBlock) -> int:
    return sum(
        entry.num_keys
        for snapshot in chain
        for entry in snapshot.files(table)
        if _overlaps(entry, wanted) and _covers(entry, block)
    )


def _split_partitions(wanted: Partitions, num_keys: int, max_keys: int) -> Iterator[Partitions]:
    """Splits the requested partitions into parts with at most about `max_keys` keys."""
    num_windows = 1
    while num_keys > num_windows * max_keys and num_windows < NUM_PARTITIONS:
        num_windows *= 2
    size = NUM_PARTITIONS // num_windows
    for begin in range(0, NUM_PARTITIONS, size):
        window = np.zeros(NUM_PARTITIONS, np.bool_)
        window[begin : begin + size] = wanted[begin : begin + size]
        if window.any():
            yield window


def _merge(
    chain: Sequence[Snapshot], table: str, wanted: Partitions, block: ColumnBlock
) -> Iterator[ScanChunk]:
    """Yields rows of a block of columns that no file splits."""
    total = _num_keys(chain, table, wanted, block)
    for window in _split_partitions(wanted, total, _WINDOW_KEYS):
        yield from _merge_window(chain, table, window, block)


def _merge_window(
    chain: Sequence[Snapshot], table: str, window: Partitions, block: ColumnBlock
) -> Iterator[ScanChunk]:
    # Sorted arrays, each more than twice as long as the next one, so that a long chain does not sort all
    # keys again for each delta.
    newer: list[Keys] = []
    for place, snapshot in enumerate(chain):
        if table not in snapshot.own_tables:
            continue
        is_oldest = place == len(chain) - 1
        if is_oldest and newer:
            newer = [np.unique(np.concatenate(newer))]
        found: list[Keys] = []
        parts = _read_parts(snapshot, table, "rows", window, block)
        for part in read_ahead(parts) if _is_large(snapshot, table) else parts:
            # Copied, because a view would keep the rows in memory too.
            found.append(part.keys.copy())
            kept = part
            del part
            for some in newer:
                kept = _exclude_keys(kept, some)
            if len(kept):
                yield kept
            del kept
        keys = _sort_unique(found, snapshot, table)
        if is_oldest:
            return
        gone = _read_parts(snapshot, table, "erased", window, block)
        erased = [part.keys.copy() for part in gone]
        newer.append(np.unique(np.concatenate([keys, *erased])))
        while len(newer) > 1 and len(newer[-2]) <= 2 * len(newer[-1]):
            last = newer.pop()
            newer[-1] = np.union1d(newer[-1], last)


def _read_parts(
    snapshot: Snapshot, table: str, kind: str, window: Partitions, block: ColumnBlock
) -> Generator[ScanChunk, None, None]:
    """Yields the rows or erased keys of these partitions and columns, from the files of one kind."""
    config = snapshot.own_tables[table].config
    for entry in snapshot.files(table, kind):
        if _overlaps(entry, window) and _covers(entry, block):
            own = entry.block or ColumnBlock(0, config.dim)
            of_file = own.table_of(config) if entry.block is not None else config
            place = ColumnBlock(block.begin - own.begin, block.end - own.begin)
            for chunk in snapshot.segments(entry, window):
                part = _select_window(chunk, window, entry)
                del chunk
                if own != block and kind == "rows":
                    rows = place.cut(of_file, np.ascontiguousarray(part.rows))
                    part = ScanChunk(part.keys, rows, part.scores)
                yield part
                del part


def _covers(entry: FileEntry, block: ColumnBlock) -> bool:
    return entry.block is None or entry.block.contains(block)


def _is_large(snapshot: Snapshot, table: str) -> bool:
    return sum(entry.size_bytes for entry in snapshot.files(table, "rows")) > BLOCK_BYTES


def _overlaps(entry: FileEntry, wanted: Partitions) -> bool:
    return bool(wanted[entry.partitions[0] : entry.partitions[1]].any())


def _select_window(chunk: ScanChunk, window: Partitions, entry: FileEntry) -> ScanChunk:
    if window[entry.partitions[0] : entry.partitions[1]].all():
        return chunk
    return _select_rows(chunk, window[_native.partition(chunk.keys)])


def _exclude_keys(chunk: ScanChunk, newer: Keys) -> ScanChunk:
    """Returns the rows whose keys are not in `newer`, which must be sorted."""
    if not len(newer):
        return chunk
    places = np.minimum(np.searchsorted(newer, chunk.keys), len(newer) - 1)
    return _select_rows(chunk, newer[places] != chunk.keys)


def _select_rows(chunk: ScanChunk, is_chosen: npt.NDArray[np.bool_]) -> ScanChunk:
    if is_chosen.all():
        return chunk
    return ScanChunk(chunk.keys[is_chosen], chunk.rows[is_chosen], chunk.scores[is_chosen])


def _sort_unique(found: list[Keys], snapshot: Snapshot, table: str) -> Keys:
    keys: Keys = np.concatenate([np.empty(0, np.int64), *found])
    keys.sort()
    repeated = np.flatnonzero(keys[1:] == keys[:-1])
    if len(repeated):
        raise damaged_error(
            snapshot.url,
            f"table {table!r}",
            0,
            f"key {int(keys[repeated[0]])} occurs more than once",
        )
    return keys


def _partition_mask(partitions: Iterable[int] | None) -> Partitions:
    if partitions is None:
        return np.ones(NUM_PARTITIONS, np.bool_)
    given = np.asarray(
        partitions if isinstance(partitions, np.ndarray) else list(partitions)
    ).reshape(-1)
    if len(given) and (
        given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= NUM_PARTITIONS
    ):
        raise InvalidArgumentError(
            f"partitions must be integers from 0 to {NUM_PARTITIONS - 1}, found {given}; pass None to "
            "read all of them"
        )
    wanted = np.zeros(NUM_PARTITIONS, np.bool_)
    wanted[given.astype(np.int64)] = True
    return wanted


def _split_chunks(chunks: Iterator[ScanChunk], chunk_rows: int) -> Iterator[ScanChunk]:
    for chunk in chunks:
        if len(chunk) <= chunk_rows:
            yield chunk
            continue
        for begin in range(0, len(chunk), chunk_rows):
            part = slice(begin, begin + chunk_rows)
            yield ScanChunk(chunk.keys[part], chunk.rows[part], chunk.scores[part])
