"""The tiers of one table, hottest first, and the locations of rows between them.

    find      first tier ──missing──► write buffer of the second ──► second tier ──► …
    upsert    first tier ──evicted──► write buffer ──► second tier ──evicted──► write buffer ──► …
                                                        (the last one in the background)

INVARIANTS
  1. The newest row of a key is in the topmost location that has one. Locations, from the top: the first
     tier, the write buffer of the second tier, the second tier, and so on.
  2. A row is removed from a location only when another location has the same row or a newer one. An
     evicted row is added to the write buffer before any reader can run again, and stays there until the
     next tier has stored it.
  3. An evicted row is dropped without being written only if the lower tiers have it already, that is, if
     the filter of dirty keys of its tier does not contain it.
  4. A tier's filter contains every key that the tier has.
  5. Rows in the promotion buffer equal the rows in the tiers, because every write takes them before it
     changes a row.

Readers share `Stack.lock`. The only writer acquires it exclusively while rows move between locations,
except while rows are written to a last tier that supports concurrent readers. If a background thread
writes them, the writer waits for it before it accesses that tier in any other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparring.contracts import (
    Columns,
    EvictedRows,
    Keys,
    ProcessGuard,
    Rows,
    TableConfig,
    closed_error,
)
from sparring_tiered.stack.composition import are_in
from sparring_tiered.stack.lock import ReaderWriterLock
from sparring_tiered.stack.promotion import PromotionBuffer
from sparring_tiered.stack.tier import Tier

__all__ = ["Stack"]


@dataclass(slots=True, eq=False)
class Stack:
    """State of a `TieredStorage`, shared by the classes that read and move its rows."""

    table: TableConfig
    tiers: Sequence[Tier]
    """At least two, hottest first. Rows that wait to be written to a tier are in its `write_buffer`."""
    promotion: PromotionBuffer
    """Rows that were found in lower tiers."""
    num_rows: int | None
    """Number of distinct keys; None if a scan is required to count them."""
    lock: ReaderWriterLock = field(default_factory=ReaderWriterLock)
    process: ProcessGuard = field(init=False)
    num_writes: int = 0
    """Number of writes, by which a scan detects that rows have changed."""
    is_closed: bool = False
    first: Tier = field(init=False)
    last: Tier = field(init=False)
    _gone: list[EvictedRows] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.first, self.last = self.tiers[0], self.tiers[-1]
        self.process = ProcessGuard(f"the stack of table {self.table.name!r}")

    def check_open(self) -> None:
        self.process.check()
        if self.is_closed:
            raise closed_error(self.table.name)

    # -- reading; requires the lock -----------------------------------------------

    def find_below(
        self,
        keys: Keys,
        columns: Columns,
        rows: Rows,
        found: npt.NDArray[np.bool_],
        *,
        first_place: int = 1,
        promotes: bool = True,
    ) -> None:
        """Finds the rows that the tiers above `first_place` do not have.

        Args:
            keys, columns, rows, found: As for `Storage.find_into`.
            first_place: Position of the first tier to search.
            promotes: Whether the next write may promote the found rows.
        """
        missing = np.flatnonzero(~found)
        for place, tier in enumerate(self.tiers[first_place:], first_place):
            if num_buffered := tier.write_buffer.find(keys, columns, rows, found):
                tier.meter.found(num_buffered, 0, read_bytes=0, seconds=0.0)
                missing = np.flatnonzero(~found)
            if not len(missing):
                return
            room = self.promotion.reserve_rows(len(missing)) if promotes else None
            below = tier.find_missing(keys, missing, columns, rows, found, room)
            if promotes:
                self.promotion.add(below.keys, below.rows, place)
            missing = below.missing

    def copy(self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]) -> None:
        """Finds rows without promoting or counting them.

        A save reads every row. If they were promoted, they would evict the hot rows. If they were
        counted, they would hide the hit rate of training.
        """
        self.first.storage._find_impl(keys, columns, rows, found)
        missing = np.flatnonzero(~found)
        for tier in self.tiers[1:]:
            if tier.write_buffer.find(keys, columns, rows, found):
                missing = np.flatnonzero(~found)
            if not len(missing):
                return
            below = tier.find_missing(keys, missing, columns, rows, found, None, is_counted=False)
            missing = below.missing

    # -- reading; acquires the lock, or is called by the writer ----------------------

    def newest(self, keys: Keys, rows: Rows, columns: Columns) -> Rows:
        """Returns the current rows of `keys`. For keys that no tier has, returns the given
        `rows`."""
        found = np.empty(len(keys), np.bool_)
        now = np.empty_like(rows)
        with self.lock.reading():
            self.copy(keys, columns, now, found)
        now[~found] = rows[~found]
        return now

    def exists_below(self, keys: Keys, known: Keys) -> npt.NDArray[np.bool_]:
        """Returns which keys, none of them in the first tier, exist in lower tiers.

        `known` are sorted keys that exist there.
        """
        exists = are_in(keys, known)
        for tier in self.tiers[1:]:
            exists |= tier.write_buffer.contains(keys)
            missing = np.flatnonzero(~exists)
            if not len(missing):
                break
            exists[missing] = tier.has(keys[missing])
        return exists

    def count_new(self, keys: Keys, known: Keys) -> int:
        """Returns the number of `keys` that no tier has; `known` are sorted keys of lower tiers."""
        missing = keys[~self.first.has(keys)]
        if not len(missing):
            return 0
        return int(np.count_nonzero(~self.exists_below(missing, known)))

    # -- counting -----------------------------------------------------------------

    def add_rows(self, count: int) -> None:
        if self.num_rows is not None:
            self.num_rows += count

    def remove_evicted(self, evicted: EvictedRows) -> None:
        """Removes rows that the last tier evicted from the stack.

        If a tier above has the key, the key remains in the stack, and its row is marked as dirty so that
        it is written down again.
        """
        is_gone = np.ones(len(evicted), np.bool_)
        for tier in self.tiers[:-1]:
            is_above = tier.has(evicted.keys)
            tier.note_dirty(evicted.keys[is_above])
            is_gone &= ~is_above
        for tier in self.tiers:
            is_gone &= ~tier.write_buffer.contains(evicted.keys)
        if is_gone.any():
            gone = EvictedRows(
                evicted.keys[is_gone], evicted.rows[is_gone], evicted.scores[is_gone]
            )
            self._gone.append(gone)
            self.add_rows(-len(gone))

    def take_evicted(self) -> EvictedRows | None:
        """Returns the rows that the stack has evicted since the last call; None if there are none."""
        if not self._gone:
            return None
        gone, self._gone = self._gone, []
        return EvictedRows(
            np.concatenate([each.keys for each in gone]),
            np.concatenate([each.rows for each in gone]),
            np.concatenate([each.scores for each in gone]),
        )
