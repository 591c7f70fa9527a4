"""A stack of storages as one storage: implements `Storage` with a `Stack` and its `Demotion`.

Threads may use it like any `Storage`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import numpy.typing as npt

from sparring.contracts import (
    Background,
    Columns,
    EvictedRows,
    Keys,
    Rows,
    ScanChunk,
    Scores,
    Storage,
    TableConfig,
    TierCounters,
    call_each,
    read_note,
    write_note,
)
from sparring_tiered.options import TieredOptions
from sparring_tiered.stack.composition import check_tiers, combine_capabilities, list_keys
from sparring_tiered.stack.demotion import Demotion
from sparring_tiered.stack.device_first_tier import DeviceFirstTier
from sparring_tiered.stack.first_tier import NativeFirstTier
from sparring_tiered.stack.promotion import PromotionBuffer
from sparring_tiered.stack.scan import scan_tiers
from sparring_tiered.stack.stack import Stack
from sparring_tiered.stack.tier import PROBE, Tier

__all__ = ["TieredStorage"]

_FLUSH_ROWS = 65_536


class TieredStorage(Storage):
    """Storages of one table, hottest first, as one storage.

    Each tier has its own scores. The stack accepts no scores, and returns those of its last tier if that
    tier evicts.

    Args:
        table: Declaration of the table.
        options: How rows move; its `tiers` are ignored.
        tiers: Backend name and open storage of each tier, from the hottest to the last. The stack takes
            ownership.
        validate: See `Storage`.

    Raises:
        InvalidArgumentError: There are fewer than two tiers, a tier was opened for another table, or a
            bounded tier above the last does not evict.
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
        made = [
            Tier(
                backend,
                storage,
                is_first=place == 0,
                is_last=place == last,
                rate=options.false_positive_rate,
            )
            for place, (backend, storage) in enumerate(tiers)
        ]
        first_capacity = made[0].storage.capacity
        promotion = PromotionBuffer(
            options.promote,
            options.buffer_bytes,
            2**62 if first_capacity is None else max(1, first_capacity // 2),
            np.empty((0, table.width), table.numpy_dtype),
        )
        is_fresh = not any(tier.storage.size for tier in made[:-1])
        num_rows = made[-1].storage.size if is_fresh else None
        self._stack = Stack(table, made, promotion, num_rows)
        self._demotion = Demotion(self._stack, options)
        self._is_flushing = False
        self.capabilities = combine_capabilities(made)

    @property
    def tiers(self) -> tuple[Storage, ...]:
        """Storages of the tiers, hottest first, for reading only."""
        return tuple(tier.storage for tier in self._stack.tiers)

    # -- optional parts of the contract -----------------------------------------

    def use_background(self, background: Background) -> None:
        self._demotion.use_background(background)

    def wait_for_capacity(self) -> None:
        self._demotion.wait_for_capacity()

    def first_tier_access(self) -> NativeFirstTier | None:
        is_native = self._stack.first.storage.capabilities.native
        return NativeFirstTier(self._stack, self._demotion) if is_native else None

    def device_first_tier_access(self) -> DeviceFirstTier | None:
        is_on_device = set(self._stack.first.storage.capabilities.devices) - {"cpu"}
        return DeviceFirstTier(self._stack, self._demotion) if is_on_device else None

    def copy_into(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        with self._stack.lock.reading():
            self._stack.copy(keys, columns, rows, found)

    def _write_note_impl(self, name: str, text: str | None) -> None:
        self._demotion.join()
        write_note(self._stack.last.storage, name, text)

    def _read_note_impl(self, name: str) -> str | None:
        return read_note(self._stack.last.storage, name)

    # -- counters ---------------------------------------------------------------

    def tier_counters(
        self, is_counted: Callable[[Storage], bool] = lambda _: True
    ) -> list[TierCounters]:
        """Returns the counters of each tier since this storage was opened, hottest first.

        Args:
            is_counted: Returns whether to count the rows of a tier; otherwise its `rows` keeps the value
                of the last call.
        """
        self._check_open()
        for tier in self._stack.tiers:
            if is_counted(tier.storage):
                tier.meter.counters.rows = tier.storage.size
        return [tier.meter.counters for tier in self._stack.tiers]

    @property
    def known_size(self) -> int | None:
        """Number of rows like `size`; None if the tiers would have to be scanned for it."""
        self._check_open()
        return self._stack.num_rows

    @property
    def num_buffered_rows(self) -> int:
        """Number of rows that wait to be written to a lower tier."""
        self._check_open()
        return self._demotion.num_buffered_rows

    @property
    def capacity(self) -> int | None:
        self._check_open()
        total = 0
        for tier in self._stack.tiers:
            capacity = tier.storage.capacity
            if capacity is None:
                return None
            total += capacity
        return total

    @property
    def memory_bytes(self) -> int:
        self._check_open()
        stack = self._stack
        return sum(tier.memory_bytes for tier in stack.tiers) + stack.promotion.memory_bytes

    # -- reading ------------------------------------------------------------

    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        stack = self._stack
        with stack.lock.reading():
            below = stack.first.find_in_two(
                stack.tiers[1], keys, columns, rows, found, stack.promotion.reserve_rows
            )
            if below is not None:
                stack.promotion.add(below.keys, below.rows, 1)
                if len(below.missing) and len(stack.tiers) > 2:
                    stack.find_below(keys, columns, rows, found, first_place=2)
                return
            stack.first.find(keys, columns, rows, found)
            if not found.all():
                stack.find_below(keys, columns, rows, found)

    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        keeps_scores = self.capabilities.scores != "none"
        return scan_tiers(self._stack, chunk_rows, columns, keeps_scores=keeps_scores)

    def _size_impl(self) -> int:
        stack = self._stack
        if stack.num_rows is None:
            counted = self._count_rows()
            if self._is_flushing:
                return counted  # rows that moved down during the count may be missing
            stack.num_rows = counted
        return stack.num_rows

    def _count_rows(self) -> int:
        """Counts distinct keys: all keys of the last tier, and other keys of the tiers above it."""
        self._demotion.join()
        tiers, last = self._stack.tiers, self._stack.last
        above = [tier.write_buffer.merged().keys for tier in tiers]
        for tier in tiers[:-1]:
            above += [chunk.keys for chunk in tier.storage.scan(columns=PROBE)]
        keys = np.unique(np.concatenate(above))
        return last.storage.size + int(np.count_nonzero(~last.has(keys)))

    # -- writing ------------------------------------------------------------

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        stack, demotion = self._stack, self._demotion
        demotion.settle(len(keys))
        promotion = stack.promotion.take()
        num_new = stack.count_new(keys, promotion.known)
        with stack.lock.writing():
            demotion.promote(promotion, keys)
            stack.promotion.clear()
            stack.num_writes += 1
            if not demotion.is_through:
                stack.first.note_dirty(keys)
            demotion.hand_down(0, stack.first.upsert(keys, rows, None))
            if demotion.is_through:
                demotion.write_through(keys, rows)
            stack.add_rows(num_new)
        demotion.send_down()
        return stack.take_evicted() or self._nothing_evicted()

    def _erase_impl(self, keys: Keys) -> int:
        stack = self._stack
        self._demotion.join()
        known = stack.promotion.take().known
        is_first = stack.first.has(keys)
        rest = keys[~is_first]
        num_known = int(np.count_nonzero(is_first))
        num_known += int(np.count_nonzero(stack.exists_below(rest, known)))
        with stack.lock.writing():
            stack.promotion.clear()
            stack.num_writes += 1
            try:
                # Starts with the last tier, so that no older row becomes visible if a tier fails.
                for tier in reversed(stack.tiers):
                    tier.erase(keys)
            except BaseException:
                self._mark_uncertain(lambda _tier: keys)
                raise
            stack.add_rows(-num_known)
        for tier in stack.tiers:
            tier.refresh_filter()
        return num_known

    def _clear_impl(self) -> None:
        stack = self._stack
        self._demotion.join()
        with stack.lock.writing():
            stack.promotion.clear()
            stack.num_writes += 1
            try:
                for tier in reversed(stack.tiers):
                    tier.clear()
            except BaseException:
                self._mark_uncertain(list_keys)
                raise
            stack.num_rows = 0
            self._demotion.clear_failure()

    def _touch_impl(self, keys: Keys, scores: Scores | None) -> None:
        self._stack.first.storage._touch_impl(keys, None)

    def _mark_uncertain(self, list_keys: Callable[[Tier], Keys]) -> None:
        """Corrects counts and filters after a removal that failed at an unknown point.

        The remaining rows may exist only in their tier, so they are marked as dirty. Rows are counted
        again.
        """
        self._stack.num_rows = None
        for tier in self._stack.tiers[:-1]:
            tier.note_dirty(list_keys(tier))

    # -- flush and close ------------------------------------------------------

    def flush(self) -> None:
        """Writes all dirty rows to the last tier, and makes them durable there.

        If the last tier is in memory and evicts, rows stay in the tiers above it, because copies of them
        would evict other rows, and the flush would make nothing durable.

        Raises:
            StorageIOError: A tier failed. Rows that were not written stay in their tiers, where finds
                read them.
        """
        super().flush()

    def _flush_impl(self) -> None:
        self._is_flushing = True
        try:
            self._write_all_down()
            for tier in self._stack.tiers:
                bears_readers = tier.storage.capabilities.concurrent_reads
                with nullcontext() if bears_readers else self._stack.lock.writing():
                    tier.storage._flush_impl()
        finally:
            self._is_flushing = False

    def _write_all_down(self) -> None:
        stack = self._stack
        self._demotion.drain()
        offered = stack.last.storage.capabilities
        stays = offered.evicts and not offered.persistent and not offered.shared
        for place, tier in enumerate(stack.tiers[:-1]):
            if stays or tier.dirty is None or (not tier.dirty.num_added):
                continue
            for chunk in tier.storage.scan(_FLUSH_ROWS):
                is_dirty = tier.are_dirty(chunk.keys)
                with stack.lock.writing():
                    stack.tiers[place + 1].write_buffer.add(
                        chunk.keys[is_dirty], chunk.rows[is_dirty], chunk.scores[is_dirty]
                    )
                self._demotion.drain()
            tier.dirty.clear()
        for tier in stack.tiers:
            tier.merge_filter()

    def _check_open(self) -> None:
        super()._check_open()
        self._stack.process.check()

    def _close_impl(self) -> None:
        self._stack.is_closed = True
        if not self._stack.process.is_own:
            return  # in a forked child, buffered rows and tiers belong to the parent
        closing = [tier.storage.close for tier in self._stack.tiers]
        # If a background write is still in progress, its thread closes the storage afterwards.
        closing[-1] = partial(self._demotion.write_back.call_when_ended, closing[-1])
        call_each([self._end_writes, *closing])

    def _end_writes(self) -> None:
        self._demotion.join()
        if self._stack.last.storage.capabilities.persistent:
            self._flush_impl()
