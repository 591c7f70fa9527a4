"""The `memory` storage: a dict of rows. Slow, and obviously correct.

It is the reference that tests compare other storages with, and is suitable for small experiments. An
entry of the dict contains the row as immutable bytes together with its score. A concurrent reader
therefore reads either the old or the new row, and the storage never keeps an array of a caller.

Scores, by policy:
    none    no scores; a full storage raises an error for new keys.
    lru     number of the last call of `upsert` or `touch` with the key.
    lfu     number of calls of `upsert` and `touch` with the key.
    custom  the caller's scores; a call without scores keeps the scores of known keys and
            sets the scores of new keys to 0.

A full storage keeps the `capacity` rows with the highest scores among its old rows and the new ones.
With equal scores, old rows are evicted before new ones, then lower keys before higher ones. A new row
with the lowest score therefore replaces an old row with the same score, and is returned as evicted if
all others have higher scores. Evictions depend only on rows and scores, which snapshots contain.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sparring.contracts.options import Options, WholeNumber
from sparring.contracts.storage.capabilities import Capabilities
from sparring.contracts.storage.results import Columns, EvictedRows, Keys, Rows, ScanChunk, Scores
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.errors import CapacityError

__all__ = ["MemoryOptions", "MemoryStorage", "estimate_memory_bytes"]

_MAX_SCORE = int(np.iinfo(np.uint64).max)


class MemoryOptions(Options):
    """Options of a `memory` storage."""

    capacity: WholeNumber | None = Field(default=None, ge=1)
    """Maximum number of rows; None for no limit."""
    policy: Literal["none", "lru", "lfu", "custom"] = "none"
    """The meaning of a score, which determines the rows that a full storage evicts."""


class _Entry(NamedTuple):
    row: bytes
    score: int


class MemoryStorage(Storage):
    """One shard of one table in a Python dict.

    Args:
        table: Declaration of the table.
        options: Capacity and policy; None for no capacity and no policy.
        validate: Whether each call checks that keys are unique.
    """

    def __init__(
        self, table: TableConfig, options: MemoryOptions | None = None, *, validate: bool = True
    ) -> None:
        super().__init__(table, validate=validate)
        self._options = options or MemoryOptions()
        self._entries: dict[int, _Entry] = {}
        self._num_calls = 0
        self._is_restoring = False
        self.capabilities = _capabilities(self._options)

    # -- reading ------------------------------------------------------------

    @property
    def capacity(self) -> int | None:
        self._check_open()
        return self._options.capacity

    @property
    def memory_bytes(self) -> int:
        self._check_open()
        return sys.getsizeof(self._entries) + len(self._entries) * _compute_entry_bytes(self.table)

    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        entries = [self._entries.get(key) for key in keys.tolist()]
        found[:] = [entry is not None for entry in entries]
        missing = bytes(self.table.row_bytes)
        rows[:] = self._as_rows(
            (missing if entry is None else entry.row for entry in entries), columns
        )

    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        # A copy, because of concurrent writers. `dict.copy` is atomic; creating a list of items is not.
        entries = iter(self._entries.copy().items())
        while chunk := dict(islice(entries, chunk_rows)):
            self._check_open()
            yield ScanChunk(
                np.array(list(chunk), np.int64),
                self._as_rows((entry.row for entry in chunk.values()), columns),
                np.array([entry.score for entry in chunk.values()], np.uint64),
            )

    def _size_impl(self) -> int:
        return len(self._entries)

    # -- writing ------------------------------------------------------------

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        given: Iterable[int | None] = [None] * len(keys) if scores is None else scores.tolist()
        data, row_bytes = rows.tobytes(), self.table.row_bytes
        new = {
            key: _Entry(data[i * row_bytes : (i + 1) * row_bytes], self._score(key, score))
            for i, (key, score) in enumerate(zip(keys.tolist(), given, strict=True))
        }
        leaving: list[int] = []
        after: Mapping[int, _Entry] = {}
        if (surplus := self._count_surplus(new)) > 0:
            after = self._entries | new
            leaving = _find_lowest(after, surplus, self._entries)
        evicted = self._evicted(after, leaving)
        for key in leaving:
            self._entries.pop(key, None)
            new.pop(key, None)
        self._entries.update(new)
        self._num_calls += not self._is_restoring
        return evicted

    def _restore_impl(self, keys: Keys, rows: Rows, scores: Scores) -> EvictedRows:
        if self._options.policy == "none":
            return self._upsert_impl(keys, rows, None)
        self._is_restoring = True
        try:
            evicted = self._upsert_impl(keys, rows, scores)
        finally:
            self._is_restoring = False
        if self._options.policy == "lru":
            self._num_calls = max(self._num_calls, int(scores.max()))
        return evicted

    def _erase_impl(self, keys: Keys) -> int:
        return sum(self._entries.pop(key, None) is not None for key in keys.tolist())

    def _touch_impl(self, keys: Keys, scores: Scores | None) -> None:
        given: Iterable[int | None] = [None] * len(keys) if scores is None else scores.tolist()
        for key, score in zip(keys.tolist(), given, strict=True):
            if (entry := self._entries.get(key)) is not None:
                self._entries[key] = _Entry(entry.row, self._score(key, score))
        self._num_calls += 1

    def _evict_impl(self, count: int) -> EvictedRows:
        leaving = _find_lowest(self._entries, count, self._entries)
        evicted = self._evicted(self._entries, leaving)
        for key in leaving:
            del self._entries[key]
        return evicted

    def _clear_impl(self) -> None:
        self._entries.clear()
        self._num_calls = 0

    def _close_impl(self) -> None:
        self._entries = {}

    # -- parts ----------------------------------------------------------------

    def _score(self, key: int, given: int | None) -> int:
        """Returns the new score of a key that is written or touched."""
        policy = self._options.policy
        if self._is_restoring and given is not None:
            return given
        if policy == "none":
            return 0
        if policy == "lru":
            return self._num_calls + 1
        old = self._entries.get(key)
        old_score = 0 if old is None else old.score
        if policy == "lfu":
            return min(old_score + 1, _MAX_SCORE)
        return old_score if given is None else given

    def _count_surplus(self, new: Mapping[int, _Entry]) -> int:
        """Returns the number of rows to evict for `new`. Raises if the policy does not evict."""
        capacity = self._options.capacity
        if capacity is None:
            return 0
        num_rows = len(self._entries) + sum(key not in self._entries for key in new)
        if num_rows > capacity and self._options.policy == "none":
            raise CapacityError(
                f"upsert of {len(new)} keys into table {self.table.name!r}: it would contain "
                f"{num_rows} rows, but its capacity is {capacity}; raise the capacity, erase rows, "
                "or choose policy lru, lfu or custom",
                table=self.table.name,
                capacity=capacity,
                size=len(self._entries),
            )
        return num_rows - capacity

    def _as_rows(self, rows: Iterable[bytes], columns: Columns) -> Rows:
        whole: Rows = np.frombuffer(b"".join(rows), self.table.numpy_dtype)
        part: Rows = whole.reshape(-1, self.table.width)[:, columns.begin : columns.end].copy()
        return part

    def _evicted(self, entries: Mapping[int, _Entry], keys: list[int]) -> EvictedRows:
        return EvictedRows(
            np.array(keys, np.int64),
            self._as_rows((entries[key].row for key in keys), Columns(0, self.table.width)),
            np.array([entries[key].score for key in keys], np.uint64),
        )


def _find_lowest(entries: Mapping[int, _Entry], count: int, old: Mapping[int, _Entry]) -> list[int]:
    """Returns up to `count` keys, in the order of eviction."""
    return heapq.nsmallest(
        count, entries, key=lambda key: (entries[key].score, key not in old, key)
    )


def _capabilities(options: MemoryOptions) -> Capabilities:
    keeps_scores = options.policy != "none"
    score_owner = {"none": "none", "custom": "given"}.get(options.policy, "policy")
    return Capabilities(
        concurrent_reads=True,
        bounded=options.capacity is not None,
        evicts=options.capacity is not None and keeps_scores,
        evict=keeps_scores,
        touch=keeps_scores,
        scores=score_owner,
        eviction_scope="table",
    )


def estimate_memory_bytes(
    table: TableConfig, options: MemoryOptions, rows: int
) -> Mapping[str, int]:
    """Returns the estimated host memory of a storage with `rows` rows, in bytes."""
    rows = min(rows, rows if options.capacity is None else options.capacity)
    # A dict of CPython has an entry of 24 bytes for two thirds of its slots, and the number of an entry
    # for each slot.
    slots = 8
    while slots * 2 // 3 < rows:
        slots *= 2
    number_bytes = next(size for size in (1, 2, 4, 8) if slots <= 1 << (8 * size - 1))
    dict_bytes = sys.getsizeof({}) + slots * number_bytes + slots * 2 // 3 * 24
    return {"host": dict_bytes + rows * _compute_entry_bytes(table)}


def _compute_entry_bytes(table: TableConfig) -> int:
    """Returns the bytes per entry as Python reports them, with a separate object for each score."""
    row_bytes = sys.getsizeof(bytes(table.row_bytes))
    return sys.getsizeof(_Entry(b"", 0)) + row_bytes + 2 * sys.getsizeof(_MAX_SCORE)
