"""A stack of storages that is a storage.

    find      first tier ──missing──► on its way to the second ──► second tier ──► …
    upsert    first tier ──what leaves──► holding ──► second tier ──what leaves──► holding ──► …
                                                        (the last one beside the steps that follow)

INVARIANTS
  1. The newest row of a key is in the topmost place that has one. Places, from the top: the first
     tier, what is on its way to the second, the second tier, and so on.
  2. A row leaves a place only when the same row, or a newer one, lies in another: a row that is
     evicted goes into the holding buffer before any reader may look again, and stays there until
     the tier below has taken it.
  3. A row is dropped without being written only where the tiers below hold it already: the filter
     of dirty keys of its tier rules it out.
  4. A tier's filter contains every key that the tier has.
  5. What waits in `Staging` is what the tiers hold: every write takes it before it changes a row.

Thread rule: as `Storage`; readers share a lock, which the one writer holds alone while rows move
between places, and not while a last tier that bears readers takes them. Where that happens on a
thread of a background, the one writer waits for it before it does anything else to that tier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import numpy.typing as npt

from sparring.closable import call_each
from sparring.storage.background import Background
from sparring.storage.contract import (
    Columns,
    Evicted,
    Keys,
    Rows,
    ScanChunk,
    Scores,
    Storage,
)
from sparring.storage.tiered.counters import TierCounters
from sparring.storage.tiered.descending import Descent
from sparring.storage.tiered.device_fronting import DeviceFronting
from sparring.storage.tiered.fronting import Fronting
from sparring.storage.tiered.locking import ReaderWriterLock
from sparring.storage.tiered.options import TieredOptions
from sparring.storage.tiered.scanning import scan_tiers
from sparring.storage.tiered.stacking import capabilities_of, check_tiers, is_in, keys_of
from sparring.storage.tiered.staging import Staged, Staging
from sparring.storage.tiered.tier import PROBE, Tier
from sparring.table import TableConfig

__all__ = ["TieredStorage"]

_FLUSH_ROWS = 65_536


class TieredStorage(Storage):
    """Storages of one table, hottest first, as one storage.

    Scores stay with their tier: the stack takes none, and shows those of its last tier where that
    one evicts.

    Args:
        table: what the rows are.
        options: how rows move; its `tiers` are not looked at.
        tiers: backend → open storage of `table`, from the hottest to the last. They belong to
            the stack from now on.
        validate: see `Storage`.

    Raises:
        InvalidArgumentError: fewer than two tiers, one for another table, or one above the last
            that refuses rows when it is full.
    """

    def __init__(
        self,
        table: TableConfig,
        options: TieredOptions,
        tiers: Sequence[tuple[str, Storage]],
        *,
        validate: bool = True,
    ) -> None:
        super().__init__(table, validate=validate)
        check_tiers(table, tiers)
        self.options = options
        last = len(tiers) - 1
        self._tiers = [
            Tier(
                backend,
                storage,
                is_first=place == 0,
                is_last=place == last,
                rate=options.false_positive_rate,
            )
            for place, (backend, storage) in enumerate(tiers)
        ]
        self._first, self._last = self._tiers[0], self._tiers[-1]
        self._lock = ReaderWriterLock()
        first_capacity = self._first.storage.capacity
        self._staging = Staging(
            options.promote,
            options.holding_bytes,
            2**62 if first_capacity is None else max(1, first_capacity // 2),
            np.empty((0, table.width), table.numpy_dtype),
        )
        self._descent = Descent(table, options, self._tiers, self._lock, self._let_go)
        self._gone: list[Evicted] = []
        self._num_written = 0
        self._num_writes = 0
        self._is_flushing = False
        is_fresh = not any(tier.storage.size for tier in self._tiers[:-1])
        self._num_rows = self._last.storage.size if is_fresh else None
        self.capabilities = capabilities_of(self._tiers)

    @property
    def tiers(self) -> tuple[Storage, ...]:
        """The storages, hottest first; to look at, not to write to."""
        return tuple(tier.storage for tier in self._tiers)

    def use_background(self, background: Background) -> None:
        self._descent.use_background(background)

    def wait_for_room(self) -> None:
        if self._descent.write_back.is_on:
            self._descent.settle(self._num_written)

    def front(self) -> Fronting | None:
        return Fronting(self) if self._first.storage.capabilities.native else None

    def device_front(self) -> DeviceFronting | None:
        is_on_device = set(self._first.storage.capabilities.devices) - {"cpu"}
        return DeviceFronting(self) if is_on_device else None

    def tier_counters(
        self, is_counted: Callable[[Storage], bool] = lambda _: True
    ) -> list[TierCounters]:
        """What was counted of each tier since this storage was opened, hottest first.

        Args:
            is_counted: which tiers are asked how many rows they have; of others `rows` is as last
                time.
        """
        self._check_open()
        for tier in self._tiers:
            if is_counted(tier.storage):
                tier.meter.counters.rows = tier.storage.size
        return [tier.meter.counters for tier in self._tiers]

    @property
    def known_size(self) -> int | None:
        """As `size`; None where tiers would have to be scanned for it."""
        self._check_open()
        return self._num_rows

    @property
    def num_held(self) -> int:
        """Rows that wait for a lower tier to take them."""
        self._check_open()
        return self._descent.num_held

    @property
    def capacity(self) -> int | None:
        self._check_open()
        total = 0
        for tier in self._tiers:
            capacity = tier.storage.capacity
            if capacity is None:
                return None
            total += capacity
        return total if self._last.storage.capacity is not None else None

    @property
    def memory_bytes(self) -> int:
        self._check_open()
        return sum(tier.memory_bytes for tier in self._tiers) + self._staging.memory_bytes

    # -- reading ------------------------------------------------------------

    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        with self._lock.reading():
            below = self._first.find_through(
                self._tiers[1], keys, columns, rows, found, self._room_for
            )
            if below is not None:
                self._staging.add(below.keys, below.rows, 1)
                if len(below.missing) and len(self._tiers) > 2:
                    self._find_below(keys, columns, rows, found, first_place=2)
                return
            self._first.find(keys, columns, rows, found)
            if not found.all():
                self._find_below(keys, columns, rows, found)

    def _room_for(self, num_rows: int) -> Rows | None:
        return self._staging.lend(num_rows) if self._staging.wants_rows else None

    def _copy_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        with self._lock.reading():
            self._copy(keys, columns, rows, found)

    def _copy(self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]) -> None:
        """Finds without a trace; the lock is held. A save reads every row: promoted, they would
        push out the hot ones; counted, they would hide how training fares."""
        self._first.storage._find_impl(keys, columns, rows, found)
        missing = np.flatnonzero(~found)
        for tier in self._tiers[1:]:
            if tier.holding.find(keys, columns, rows, found):
                missing = np.flatnonzero(~found)
            if not len(missing):
                return
            below = tier.find_missing(keys, missing, columns, rows, found, None, is_counted=False)
            missing = below.missing

    def _find_below(
        self,
        keys: Keys,
        columns: Columns,
        rows: Rows,
        found: npt.NDArray[np.bool_],
        *,
        first_place: int = 1,
        is_staged: bool = True,
    ) -> None:
        """Fills in what the tiers above `first_place` do not have; the lock is held."""
        missing = np.flatnonzero(~found)
        for place, tier in enumerate(self._tiers[first_place:], first_place):
            if num_held := tier.holding.find(keys, columns, rows, found):
                tier.meter.found(num_held, 0, read_bytes=0, seconds=0.0)
                missing = np.flatnonzero(~found)
            if not len(missing):
                return
            room = self._room_for(len(missing)) if is_staged else None
            below = tier.find_missing(keys, missing, columns, rows, found, room)
            if is_staged:
                self._staging.add(below.keys, below.rows, place)
            missing = below.missing

    def _exists_below(self, keys: Keys, known: Keys) -> npt.NDArray[np.bool_]:
        """Which keys that the first tier lacks have a row below it; `known` is sorted."""
        exists = is_in(keys, known)
        for tier in self._tiers[1:]:
            exists |= tier.holding.contains(keys)
            missing = np.flatnonzero(~exists)
            if not len(missing):
                break
            exists[missing] = tier.has(keys[missing])
        return exists

    def newest(self, keys: Keys, rows: Rows, columns: Columns) -> Rows:
        """The rows of now, and those of `rows` for keys that have none; for parts of the stack."""
        found = np.empty(len(keys), np.bool_)
        now = np.empty_like(rows)
        with self._lock.reading():
            self._copy(keys, columns, now, found)
        now[~found] = rows[~found]
        return now

    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        return scan_tiers(self, self._tiers, chunk_rows, columns)

    def _size_impl(self) -> int:
        if self._num_rows is None:
            counted = self._counted()
            if self._is_flushing:
                return counted  # rows that went down meanwhile may be missing
            self._num_rows = counted
        return self._num_rows

    def _counted(self) -> int:
        """Distinct keys: those of the last tier, and those above that it lacks."""
        self._descent.join()
        above = [tier.holding.merged().keys for tier in self._tiers]
        for tier in self._tiers[:-1]:
            above += [chunk.keys for chunk in tier.storage.scan(columns=PROBE)]
        keys = np.unique(np.concatenate(above)) if above else np.empty(0, np.int64)
        return self._last.storage.size + int(np.count_nonzero(~self._last.has(keys)))

    # -- writing ------------------------------------------------------------

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> Evicted:
        self._settle(keys)
        staged = self._staging.take()
        num_new = self._count_new(keys, staged)
        with self._lock.writing():
            self._promote(staged, keys)
            self._staging.clear()
            self._num_writes += 1
            if not self._descent.is_through:
                self._first.note_dirty(keys)
            self._descent.hand_down(0, self._first.upsert(keys, rows, None))
            if self._descent.is_through:
                self._descent.hold_all(1, keys, rows)
            self._add_rows(num_new)
        self._descent.send_down()
        return self._take_gone()

    def _settle(self, keys: Keys) -> None:
        """Before a write to rows of `keys`; what raises here has changed nothing."""
        self._num_written = len(keys)
        self._descent.settle(len(keys))

    def _count_new(self, keys: Keys, staged: Staged) -> int:
        """How many of `keys` no tier has. What raises here has changed nothing."""
        missing = keys[~self._first.has(keys)]
        if not len(missing):
            return 0
        return int(np.count_nonzero(~self._exists_below(missing, staged.known)))

    def _promote(self, staged: Staged, but: Keys) -> None:
        """Copies staged rows into the first tier, but for keys that are about to be written."""
        for place in np.unique(staged.origins).tolist():
            num_rows = int(np.count_nonzero(staged.origins == place))
            self._tiers[place].meter.counters.promotions += num_rows
        is_wanted = ~is_in(staged.keys, np.sort(but))
        if is_wanted.any():
            self._descent.hand_down(
                0, self._first.upsert(staged.keys[is_wanted], staged.rows(is_wanted), None)
            )
        self._staging.give_back(staged)

    def _let_go(self, evicted: Evicted) -> None:
        """Rows left the last tier. Where a tier above has the key it stays, and must go down
        again one day."""
        is_gone = np.ones(len(evicted), np.bool_)
        for tier in self._tiers[:-1]:
            is_above = tier.has(evicted.keys)
            tier.note_dirty(evicted.keys[is_above])
            is_gone &= ~is_above
        for tier in self._tiers:
            is_gone &= ~tier.holding.contains(evicted.keys)
        if is_gone.any():
            gone = Evicted(evicted.keys[is_gone], evicted.rows[is_gone], evicted.scores[is_gone])
            self._gone.append(gone)
            self._add_rows(-len(gone))

    def _take_gone(self) -> Evicted:
        gone, self._gone = self._gone, []
        if not gone:
            return self._nothing_evicted()
        return Evicted(
            np.concatenate([each.keys for each in gone]),
            np.concatenate([each.rows for each in gone]),
            np.concatenate([each.scores for each in gone]),
        )

    def _add_rows(self, count: int) -> None:
        if self._num_rows is not None:
            self._num_rows += count

    def _erase_impl(self, keys: Keys) -> int:
        self._descent.join()
        known = self._staging.take().known
        is_first = self._first.has(keys)
        rest = keys[~is_first]
        num_known = int(np.count_nonzero(is_first))
        num_known += int(np.count_nonzero(self._exists_below(rest, known)))
        with self._lock.writing():
            self._staging.clear()
            self._num_writes += 1
            try:
                # From the bottom, so that no older row comes to light where a tier fails.
                for tier in reversed(self._tiers):
                    tier.erase(keys)
            except BaseException:
                self._expect_holes(lambda _tier: keys)
                raise
            self._add_rows(-num_known)
        for tier in self._tiers:
            tier.refresh_filter()
        return num_known

    def _clear_impl(self) -> None:
        self._descent.join()
        with self._lock.writing():
            self._staging.clear()
            self._num_writes += 1
            try:
                for tier in reversed(self._tiers):
                    tier.clear()
            except BaseException:
                self._expect_holes(keys_of)
                raise
            self._num_rows = 0
            self._descent.forgive()

    def _write_note_impl(self, name: str, text: str | None) -> None:
        self._descent.join()
        self._last.storage.write_note(name, text)

    def _read_note_impl(self, name: str) -> str | None:
        return self._last.storage.read_note(name)

    def _touch_impl(self, keys: Keys, scores: Scores | None) -> None:
        self._first.storage._touch_impl(keys, None)

    def _expect_holes(self, keys_of: Callable[[Tier], Keys]) -> None:
        """A removal failed, and nobody knows how far it came. Rows that are still here may be
        the last of their kind, so they must go down again; and rows are counted anew."""
        self._num_rows = None
        for tier in self._tiers[:-1]:
            tier.note_dirty(keys_of(tier))

    # -- down -----------------------------------------------------------------

    def flush(self) -> None:
        """Writes all rows that are newer above to the last tier, and has it make them durable.

        Raises:
            StorageIOError: a tier failed; what did not arrive stays where it is, and is found.
        """
        super().flush()

    def _flush_impl(self) -> None:
        self._is_flushing = True
        try:
            self._bring_all_down()
            for tier in self._tiers:
                bears_readers = tier.storage.capabilities.concurrent_reads
                with nullcontext() if bears_readers else self._lock.writing():
                    tier.storage._flush_impl()
        finally:
            self._is_flushing = False

    def _bring_all_down(self) -> None:
        self._descent.drain()
        for place, tier in enumerate(self._tiers[:-1]):
            if tier.dirty is None or (not tier.dirty.num_added):
                continue
            for chunk in tier.storage.scan(_FLUSH_ROWS):
                is_dirty = tier.dirty_of(chunk.keys)
                with self._lock.writing():
                    self._tiers[place + 1].holding.add(
                        chunk.keys[is_dirty], chunk.rows[is_dirty], chunk.scores[is_dirty]
                    )
                self._descent.drain()
            tier.dirty.clear()
        for tier in self._tiers:
            tier.join_filter()

    def _close_impl(self) -> None:
        closing = [tier.storage.close for tier in self._tiers]
        # Not beneath a write that has not ended: its thread closes the storage then.
        closing[-1] = partial(self._descent.write_back.when_ended, closing[-1])
        call_each([self._end_writes, *closing])

    def _end_writes(self) -> None:
        self._descent.join()
        if self._last.storage.capabilities.persistent:
            self._flush_impl()
