"""One tier of a stack: a storage, its filters, its write buffer and its counters."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.adapter import GrowingBloomFilter, place_rows
from sparring.contracts import Columns, EvictedRows, Keys, NativeStorage, Rows, Scores, Storage
from sparring_tiered.stack.meter import TierMeter
from sparring_tiered.stack.write_buffer import BufferedRows, WriteBuffer

__all__ = ["PLANNED_DIRTY_KEYS", "PLANNED_KEYS", "PROBE", "LowerResult", "Tier"]

PROBE = Columns(0, 1)
"""The smallest part of a row that can be read, for testing whether the row exists."""

PLANNED_KEYS = 65_536
"""Minimum number of keys for which the filter of a tier's keys is created."""
PLANNED_DIRTY_KEYS = 1 << 18
"""Number of keys for which the filter of dirty keys is created, if the tier has no capacity."""
_MAX_FILTER_PARTS = 2
_MIN_ERASED = 1_024
_MAX_ERASED_SHARE = 0.25
_MAX_DIRTY_RATIO = 4


@dataclass(frozen=True, slots=True)
class LowerResult:
    """Result of a find in a lower tier."""

    keys: Keys
    """Keys that the tier has."""
    rows: Rows | None
    """Whole rows of these keys, if they were requested."""
    missing: Keys
    """Positions of the keys that are still missing, in any order."""


class Tier:
    """A storage with a Bloom filter of its keys, and a buffer of rows that wait to be written to it.

    Args:
        backend: Name of the storage's backend.
        storage: Storage of the rows. The tier takes ownership.
        is_first: Whether it is the first tier.
        is_last: Whether it is the last tier.
        rate: False positive rate of the filter.

    Attributes:
        keys_filter: Keys that the storage may have; None for the first tier, which every find reads.
        write_buffer: Rows from the tier above that are not written yet. They are newer than the rows of
            the storage.
        dirty: Superset of the keys whose row here is newer than in lower tiers; None for the last tier.
    """

    def __init__(
        self, backend: str, storage: Storage, *, is_first: bool, is_last: bool, rate: float
    ) -> None:
        self.backend = backend
        self.storage = storage
        self.is_last = is_last
        self.rate = rate
        self.meter = TierMeter(backend)
        self.write_buffer = WriteBuffer(storage.table.width, storage.table.numpy_dtype)
        self.num_erased = 0
        self.dirty = None if is_last else self._create_dirty_filter(0)
        self.keys_filter: GrowingBloomFilter | None = None
        if not is_first:
            self.keys_filter = self._build_keys_filter()
        if self.dirty is not None and storage.size:
            # Rows of an earlier process; the rows in lower tiers may be older.
            for chunk in storage.scan(columns=PROBE):
                self.dirty.add(chunk.keys)

    @property
    def excludes_readers(self) -> bool:
        """Whether readers must be excluded while rows are written to the tier.

        This is required if a write can evict a row, because for a moment neither tier has the row.
        """
        offered = self.storage.capabilities
        return not self.is_last or offered.evicts or not offered.concurrent_reads

    @property
    def memory_bytes(self) -> int:
        filters = sum(each.memory_bytes for each in (self.dirty, self.keys_filter) if each)
        return self.storage.memory_bytes + self.write_buffer.num_bytes + filters

    # -- reading ----------------------------------------------------------------

    def find(self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]) -> None:
        """Finds rows like `Storage.find_into`, and counts them."""
        start = time.perf_counter()
        self.storage._find_impl(keys, columns, rows, found)
        seconds = time.perf_counter() - start
        hits = int(np.count_nonzero(found))
        itemsize = rows.itemsize
        self.meter.found(
            hits,
            len(keys) - hits,
            read_bytes=hits * (columns.end - columns.begin) * itemsize,
            seconds=seconds,
        )

    def find_missing(
        self,
        keys: Keys,
        missing: Keys,
        columns: Columns,
        rows: Rows,
        found: npt.NDArray[np.bool_],
        room: Rows | None,
        *,
        is_counted: bool = True,
    ) -> LowerResult:
        """Finds keys that no tier above has, and fills `rows` and `found` for them.

        Args:
            keys: ``(n,)`` requested keys.
            missing: Positions of the keys that were not found yet.
            columns: Columns to read.
            rows: ``(n, width of columns)``, output.
            found: ``(n,)``, output.
            room: ``(at least len(missing), width)``, output for whole rows; None if they are not needed.
            is_counted: Whether to add to the counters of the tier.
        """
        handle = self._handle
        if handle is None:
            return self._find_missing(keys, missing, columns, rows, found, room, is_counted)
        assert self.keys_filter is not None
        size = rows.itemsize
        met = handle.find_below(
            self.keys_filter.native_parts,
            keys,
            missing,
            (columns.begin * size, columns.end * size),
            rows,
            found,
            room,
        )
        return self._record_find(met, columns, size, room, is_counted)

    def find_in_two(
        self,
        second: Tier,
        keys: Keys,
        columns: Columns,
        rows: Rows,
        found: npt.NDArray[np.bool_],
        lend: Callable[[int], Rows | None],
    ) -> LowerResult | None:
        """Calls `find` of the first tier and `find_missing` of the second tier in one native call.

        Requires that the rows of both tiers are in memory, and that no rows wait between them.

        Args:
            second: Tier below this one.
            keys, columns, rows, found: As for `find`.
            lend: Returns an array for a number of whole rows, or None.

        Returns:
            The result of the second tier; None if the requirements are not met and no row was read.
        """
        handle, below = self._handle, second._handle
        if handle is None or below is None or second.write_buffer:
            return None
        assert second.keys_filter is not None
        size = rows.itemsize
        room = lend(len(keys))
        num_found, seconds, met = handle.find_first(
            keys,
            (columns.begin * size, columns.end * size),
            rows,
            found,
            below,
            second.keys_filter.native_parts,
            room,
        )
        read_bytes = num_found * (columns.end - columns.begin) * size
        self.meter.found(num_found, len(keys) - num_found, read_bytes=read_bytes, seconds=seconds)
        return second._record_find(met, columns, size, room, True)

    @property
    def _handle(self) -> Any | None:
        """Native handle of a storage whose rows are in memory.

        It is not cached, because it would keep the rows of a closed storage alive, and find them."""
        if not isinstance(self.storage, NativeStorage):
            return None
        return self.storage.handle_in_memory

    def _record_find(
        self,
        met: tuple[Keys, Keys, int, float],
        columns: Columns,
        itemsize: int,
        room: Rows | None,
        is_counted: bool,
    ) -> LowerResult:
        """Counts a native find in this tier, and converts its result."""
        keys, missing, num_skipped, seconds = met
        if is_counted and len(keys) + len(missing):
            width = (columns.end - columns.begin) if room is None else room.shape[1]
            misses = len(missing) - num_skipped
            read_bytes = len(keys) * width * itemsize
            self.meter.found(len(keys), misses, read_bytes=read_bytes, seconds=seconds)
            self.meter.filtered(num_skipped, misses)
        return LowerResult(keys, None if room is None else room[: len(keys)], missing)

    def _find_missing(
        self,
        keys: Keys,
        missing: Keys,
        columns: Columns,
        rows: Rows,
        found: npt.NDArray[np.bool_],
        room: Rows | None,
        is_counted: bool,
    ) -> LowerResult:
        """Implements `find_missing` for any storage, with NumPy."""
        assert self.keys_filter is not None
        may_have = self.keys_filter.contains(keys[missing])
        asked = missing[may_have]
        table = self.storage.table
        span = columns if room is None else Columns(0, table.width)
        part = (
            np.empty((len(asked), span.end - span.begin), table.numpy_dtype)
            if room is None
            else room[: len(asked)]
        )
        is_there = np.empty(len(asked), np.bool_)
        asked_keys = keys[asked]
        if len(asked):
            find = self.find if is_counted else self.storage._find_impl
            find(asked_keys, span, part, is_there)
        hits = int(np.count_nonzero(is_there))
        if is_counted:
            self.meter.filtered(len(missing) - len(asked), len(asked) - hits)
        places = asked
        if hits < len(asked):
            places, asked_keys, part = asked[is_there], asked_keys[is_there], part[is_there]
        if columns == span and rows.flags.c_contiguous:
            place_rows(part, places, rows)
        else:
            begin = columns.begin - span.begin
            rows[places] = part[:, begin : begin + columns.end - columns.begin]
        found[places] = True
        still_missing = missing[:0] if hits == len(missing) else missing[~found[missing]]
        return LowerResult(asked_keys, None if room is None else part, still_missing)

    def has(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Returns which keys have a row in the storage. Counts only the results of the filter."""
        found = np.zeros(len(keys), np.bool_)
        asked: npt.NDArray[np.bool_] | slice = slice(None)
        if self.keys_filter is not None:
            asked = self.keys_filter.contains(keys)
        asked_keys = np.ascontiguousarray(keys[asked])
        if len(asked_keys):
            rows = np.empty((len(asked_keys), 1), self.storage.table.numpy_dtype)
            is_there = np.empty(len(asked_keys), np.bool_)
            self.storage._find_impl(asked_keys, PROBE, rows, is_there)
            found[asked] = is_there
        if self.keys_filter is not None:
            num_found = int(np.count_nonzero(found))
            self.meter.filtered(len(keys) - len(asked_keys), len(asked_keys) - num_found)
        return found

    # -- writing ----------------------------------------------------------------

    def upsert(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        """Writes rows; returns the evicted rows."""
        if self.keys_filter is not None:
            self.keys_filter.add(keys)
        with self.meter.writing(rows.nbytes):
            evicted = self.storage._upsert_impl(keys, rows, scores)
        self.meter.counters.evictions += len(evicted)
        return evicted

    def receive(self, arriving: BufferedRows) -> EvictedRows:
        """Writes rows of the write buffer; returns the evicted rows."""
        takes_scores = self.storage.capabilities.scores == "given"
        return self.upsert(arriving.keys, arriving.rows, arriving.scores if takes_scores else None)

    def erase(self, keys: Keys) -> None:
        """Removes keys from the storage and from its write buffer."""
        asked = keys
        if self.keys_filter is not None:
            asked = keys[self.keys_filter.contains(keys)]
        if len(asked):
            with self.meter.writing(0):
                self.num_erased += self.storage._erase_impl(asked)
        self.write_buffer.remove(keys)

    def clear(self) -> None:
        self.storage._clear_impl()
        self.write_buffer.clear()
        self.num_erased = 0
        for each in (self.keys_filter, self.dirty):
            if each is not None:
                each.clear()

    # -- filters -------------------------------------------------------------------

    def note_dirty(self, keys: Keys) -> None:
        """Records that rows of `keys` are, or will soon be, newer than in lower tiers."""
        if self.dirty is not None:
            self.dirty.add(keys)

    def are_dirty(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Returns which of `keys` may have newer rows here than in lower tiers."""
        if self.dirty is None:
            return np.ones(len(keys), np.bool_)
        return self.dirty.contains(keys)

    def refresh_filter(self) -> None:
        """Rebuilds the filter if many of its keys were erased, because a filter cannot remove keys."""
        if self.keys_filter is None:
            return
        limit = max(_MIN_ERASED, _MAX_ERASED_SHARE * self.keys_filter.num_added)
        if self.num_erased > limit:
            self._rebuild_filter()

    def merge_filter(self) -> None:
        """Rebuilds a filter of several parts as one part, because each lookup reads all parts."""
        if self.keys_filter is not None and self.keys_filter.num_parts > _MAX_FILTER_PARTS:
            self._rebuild_filter()

    def _rebuild_filter(self) -> None:
        self.keys_filter = self._build_keys_filter()
        self.num_erased = 0

    def _create_dirty_filter(self, min_keys: int) -> GrowingBloomFilter:
        capacity = self.storage.capacity
        planned = PLANNED_DIRTY_KEYS if capacity is None else 2 * capacity
        return GrowingBloomFilter(max(1_024, planned, min_keys))

    def _build_keys_filter(self) -> GrowingBloomFilter:
        size = self.storage.size
        made = GrowingBloomFilter(
            max(PLANNED_KEYS, size + size // 4), false_positive_rate=self.rate
        )
        if size:
            for chunk in self.storage.scan(columns=PROBE):
                made.add(chunk.keys)
        return made

    def trim_dirty(self) -> None:
        """Removes dirty keys whose rows are no longer here, if there are many. Called between writes."""
        if self.dirty is None:
            return
        if self.dirty.num_added <= PLANNED_DIRTY_KEYS:
            return  # reading the size of a tier on a device waits for the device
        if self.dirty.num_added <= _MAX_DIRTY_RATIO * self.storage.size:
            return
        staying = self._create_dirty_filter(2 * self.storage.size)
        for chunk in self.storage.scan(columns=PROBE):
            staying.add(chunk.keys[self.dirty.contains(chunk.keys)])
        self.dirty = staying
