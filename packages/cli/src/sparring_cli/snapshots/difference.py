"""Differences between the tables of two snapshots, in bounded memory."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparring import ScanChunk, Snapshot, TableConfig, scan_rows
from sparring.contracts import NUM_PARTITIONS, read_embeddings
from sparring.errors import InvalidArgumentError

__all__ = ["MovedRow", "TableDifference", "compare_tables"]

_WINDOW_BYTES = 64 << 20
"""Bytes of the rows of one snapshot that are compared at a time. A comparison needs about six times as
much memory."""


@dataclass(frozen=True, slots=True, order=True)
class MovedRow:
    """A row whose embedding differs.

    Args:
        moved: Distance between the embeddings.
        key: Key of the row.
        norms: Norms of the embeddings.
    """

    moved: float
    key: int
    norms: tuple[float, float]


@dataclass(slots=True)
class TableDifference:
    """Difference between a table in two snapshots, before and after."""

    table: str
    num_rows: list[int] = field(default_factory=lambda: [0, 0])
    num_created: int = 0
    num_erased: int = 0
    num_changed: int = 0
    """Rows that differ in any bit of their embedding or optimizer state."""
    num_moved: int = 0
    """Rows whose embeddings differ."""
    sum_moved: float = 0.0
    """Sum of the distances between their embeddings."""
    sum_norms: list[float] = field(default_factory=lambda: [0.0, 0.0])
    max_norms: list[float] = field(default_factory=lambda: [0.0, 0.0])
    most_moved: list[MovedRow] = field(default_factory=list)
    """The rows that moved most, in descending order."""

    @property
    def mean_norms(self) -> tuple[float | None, float | None]:
        """Mean norms of the embeddings before and after; None without rows."""
        before, after = (
            total / count if count else None
            for total, count in zip(self.sum_norms, self.num_rows, strict=True)
        )
        return before, after


def compare_tables(
    before: Snapshot,
    after: Snapshot,
    table: str,
    top: int,
    on_progress: Callable[[float], None] | None = None,
) -> TableDifference:
    """Compares the rows of a table, some partitions at a time.

    Args:
        before: First snapshot.
        after: Second snapshot.
        table: Name of a table of both.
        top: Number of rows in `most_moved`.
        on_progress: Called with the share of the partitions that were compared. It may raise to stop.

    Raises:
        InvalidArgumentError: The embeddings have different dims.
        SnapshotDamagedError: A file is damaged.
        SnapshotIOError: The file system failed.
    """
    configs = [each.tables[table].config for each in (before, after)]
    if configs[0].dim != configs[1].dim:
        raise InvalidArgumentError(
            f"diff: table {table!r} has dim {configs[0].dim} in {before.url} and {configs[1].dim} in "
            f"{after.url}, expected equal dims; compare snapshots of one run, or give other tables with "
            "--table"
        )
    found = TableDifference(table)
    for window in _split(before, after, table):
        sides = [
            _read(each, table, config, window)
            for each, config in zip((before, after), configs, strict=True)
        ]
        _add(found, sides[0], sides[1], top)
        if on_progress is not None:
            on_progress(window.stop / NUM_PARTITIONS)
    found.most_moved.sort(reverse=True)
    return found


@dataclass(frozen=True, slots=True)
class _Side:
    """Rows of some partitions of one snapshot, in the order of their keys."""

    config: TableConfig
    keys: npt.NDArray[np.int64]
    rows: npt.NDArray[np.generic]
    norms: npt.NDArray[np.float64]

    def embeddings(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Returns embeddings in float64, because squares of float32 could overflow."""
        found: npt.NDArray[np.float64] = read_embeddings(self.config, self.rows[places]).astype(
            np.float64
        )
        return found

    def bytes_of(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        return np.ascontiguousarray(self.rows[places]).view(np.uint8)


def _split(before: Snapshot, after: Snapshot, table: str) -> Iterator[range]:
    size = max(
        sum(entry.size_bytes for link in each.chain for entry in link.files(table, "rows"))
        for each in (before, after)
    )
    num_windows = 1
    while size > num_windows * _WINDOW_BYTES and num_windows < NUM_PARTITIONS:
        num_windows *= 2
    step = NUM_PARTITIONS // num_windows
    for begin in range(0, NUM_PARTITIONS, step):
        yield range(begin, begin + step)


def _read(snapshot: Snapshot, table: str, config: TableConfig, window: range) -> _Side:
    chunks = [
        ScanChunk(each.keys.copy(), each.rows.copy(), each.scores[:0])
        for each in scan_rows(snapshot, table, window)
    ]
    keys = np.concatenate([np.empty(0, np.int64), *(each.keys for each in chunks)])
    nothing = np.empty((0, config.width), config.numpy_dtype)
    rows = np.concatenate([nothing, *(each.rows for each in chunks)])
    del chunks
    order = np.argsort(keys)
    keys, rows = keys[order], rows[order]
    norms = np.linalg.norm(read_embeddings(config, rows).astype(np.float64), axis=1)
    return _Side(config, keys, rows, norms)


def _add(found: TableDifference, before: _Side, after: _Side, top: int) -> None:
    _, old, new = np.intersect1d(before.keys, after.keys, assume_unique=True, return_indices=True)
    for number, side in enumerate((before, after)):
        found.num_rows[number] += len(side.keys)
        finite = side.norms[np.isfinite(side.norms)]
        found.sum_norms[number] += float(finite.sum())
        found.max_norms[number] = max(found.max_norms[number], float(finite.max(initial=0.0)))
    found.num_created += len(after.keys) - len(new)
    found.num_erased += len(before.keys) - len(old)
    if before.config == after.config:
        differs = (before.bytes_of(old) != after.bytes_of(new)).any(axis=1)
        old, new = old[differs], new[differs]
        found.num_changed += len(old)
    moved = np.linalg.norm(after.embeddings(new) - before.embeddings(old), axis=1)
    moved[np.isnan(moved)] = np.inf  # So that they are first among the rows that moved most.
    if before.config != after.config:  # Rows of other dtypes or optimizers differ in their bytes.
        found.num_changed += int(np.count_nonzero(moved))
    found.num_moved += int(np.count_nonzero(moved))
    found.sum_moved += float(moved[np.isfinite(moved)].sum())
    most = np.lexsort((after.keys[new], moved))[::-1][:top]
    found.most_moved = heapq.nlargest(
        top,
        [
            *found.most_moved,
            *(
                MovedRow(
                    float(moved[each]),
                    int(after.keys[new[each]]),
                    (float(before.norms[old[each]]), float(after.norms[new[each]])),
                )
                for each in most
                if moved[each] != 0
            ),
        ],
    )
