"""The tiers of one table, hottest first, and the places where rows are between them.

    find      first tier ──missing──► write buffer of the second ──► second tier ──► …
    upsert    first tier ──evicted──► write buffer ──► second tier ──evicted──► write buffer ──► …
                                                        (the last one in the background)

INVARIANTS
  1. The newest row of a key is in the topmost place that has one. Places, from the top: the first
     tier, the write buffer of the second, the second tier, and so on.
  2. A row leaves a place only when the same row, or a newer one, is in another: a row that is
     evicted goes into the write buffer before any reader may look again, and stays there until
     the tier below has taken it.
  3. A row is dropped without being written only where the tiers below have it already: the filter
     of dirty keys of its tier rules it out.
  4. A tier's filter contains every key that the tier has.
  5. Rows in the promotion buffer are those of the tiers: every write takes them before it changes a
     row.

Readers share `Stack.lock`. The one writer holds it alone while rows move between places, except
while a last tier that allows concurrent readers takes them. Where that happens on a thread of a
background, the writer waits for it before it does anything else to that tier.
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
    """State of a `TieredStorage`, shared by the parts that read its rows and move them."""

    table: TableConfig
    tiers: Sequence[Tier]
    """Hottest first, two or more. Rows on their way to a tier are in its `write_buffer`."""
    promotion: PromotionBuffer
    """Rows that were found below the first tier."""
    num_rows: int | None
    """Distinct keys; None: not known without a scan."""
    lock: ReaderWriterLock = field(default_factory=ReaderWriterLock)
    process: ProcessGuard = field(init=False)
    num_writes: int = 0
    """Writes so far, by which a scan notices that rows have changed."""
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

    # -- reading; the lock is held ------------------------------------------------

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
        """Fills in the rows that the tiers above `first_place` do not have.

        Args:
            keys, columns, rows, found: as `Storage.find_into`.
            first_place: of the tier to begin with.
            promotes: they may come up with the next write.
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
        """Finds without a trace.

        A save reads every row: promoted, they would push out the hot ones; counted, they would hide
        how training fares.
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

    # -- reading; takes the lock, or is for the writer ------------------------------

    def newest(self, keys: Keys, rows: Rows, columns: Columns) -> Rows:
        """The current rows of `keys`; where there is none, those of `rows`."""
        found = np.empty(len(keys), np.bool_)
        now = np.empty_like(rows)
        with self.lock.reading():
            self.copy(keys, columns, now, found)
        now[~found] = rows[~found]
        return now

    def exists_below(self, keys: Keys, known: Keys) -> npt.NDArray[np.bool_]:
        """Which keys that the first tier lacks have a row below it; `known` is sorted."""
        exists = are_in(keys, known)
        for tier in self.tiers[1:]:
            exists |= tier.write_buffer.contains(keys)
            missing = np.flatnonzero(~exists)
            if not len(missing):
                break
            exists[missing] = tier.has(keys[missing])
        return exists

    def count_new(self, keys: Keys, known: Keys) -> int:
        """The number of `keys` that no tier has; `known` exist below the first tier, and are sorted."""
        missing = keys[~self.first.has(keys)]
        if not len(missing):
            return 0
        return int(np.count_nonzero(~self.exists_below(missing, known)))

    # -- counting -----------------------------------------------------------------

    def add_rows(self, count: int) -> None:
        if self.num_rows is not None:
            self.num_rows += count

    def remove_evicted(self, evicted: EvictedRows) -> None:
        """Takes rows that left the last tier.

        Where a tier above has the key, it stays, and its row must go down again one day.
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
        """The rows that left the stack since the last call; None: there are none."""
        if not self._gone:
            return None
        gone, self._gone = self._gone, []
        return EvictedRows(
            np.concatenate([each.keys for each in gone]),
            np.concatenate([each.rows for each in gone]),
            np.concatenate([each.scores for each in gone]),
        )
