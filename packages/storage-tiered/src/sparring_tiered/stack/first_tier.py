"""Access of native code to the rows of a native first tier, which are updated in place.

Before an update, rows that exist in lower tiers are copied into the first tier. After it, evicted rows
are passed to the next tier. ``native/bindings/front.h`` calls these methods.
"""

from __future__ import annotations

import numpy as np

from sparring.contracts import Columns, EvictedRows, Keys, Rows, Scores, get_capsule
from sparring_tiered.stack.demotion import Demotion
from sparring_tiered.stack.stack import Stack

__all__ = ["NativeFirstTier"]


class NativeFirstTier:
    """Methods that native code calls before and after its access; see `FirstTierAccess`."""

    def __init__(self, stack: Stack, demotion: Demotion) -> None:
        self._stack = stack
        self._demotion = demotion
        self._num_unseen = 0

    @property
    def first(self) -> object:
        """Capsule of the first tier."""
        return get_capsule(self._stack.first.storage)

    def begin_visit(self) -> None:
        """Begins to read rows of the first tier. A call of `end_visit` must follow."""
        self._stack.check_open()
        self._stack.lock.begin_reading()

    def end_visit(self, num_served: int, read_bytes: int, seconds: float) -> None:
        """Ends the read of `num_served` keys. `seconds` includes the time to use their rows."""
        self._stack.lock.end_reading()
        self._stack.first.meter.found(num_served, 0, read_bytes=read_bytes, seconds=seconds)

    def begin_update(self, keys: Keys) -> None:
        """Begins an update: locks the stack until `end_update` or `abort_update`, and promotes rows.

        Raises:
            SparringError: A lower tier failed; no row was changed.
        """
        stack = self._stack
        self._num_unseen = 0
        stack.check_open()
        self._demotion.settle(len(keys))
        stack.lock.begin_writing()
        try:
            # All rows, because the rows that a step found in lower tiers are the rows that it updates
            # now.
            self._demotion.promote(stack.promotion.take(), keys[:0])
            if not self._demotion.is_through:
                stack.first.note_dirty(keys)
        except BaseException:
            stack.lock.end_writing()
            raise

    def bring_up(self, keys: Keys, missing: Keys) -> bool:
        """Copies rows that exist in lower tiers into the first tier.

        Args:
            keys: Keys of the update.
            missing: Keys of the update that are not in the first tier.

        Returns:
            Whether all of `keys` that exist are in the first tier now.

        Raises:
            SparringError: A lower tier failed; no row was changed.
        """
        stack = self._stack
        whole = Columns(0, stack.table.width)
        rows = np.empty((len(missing), stack.table.width), stack.table.numpy_dtype)
        found = np.zeros(len(missing), np.bool_)
        stack.find_below(missing, whole, rows, found, promotes=False)
        self._num_unseen = len(missing) - int(np.count_nonzero(found))
        if not found.any():
            return True
        evicted = stack.first.upsert(missing[found], rows[found], None)
        self._demotion.hand_down(0, evicted)
        return not np.isin(evicted.keys, keys).any()

    def end_update(
        self,
        keys: Keys,
        num_inserted: int,
        evicted: tuple[Keys, Rows, Scores] | None,
        seconds: float,
    ) -> tuple[Keys, Rows, Scores] | None:
        """Ends an update after the rows of `keys` were changed, except keys that were not admitted.

        Args:
            keys: Keys of the update.
            num_inserted: Number of new keys.
            evicted: Keys, bytes and scores of the rows that the first tier evicted.
            seconds: Time of the first tier's update.

        Returns:
            Keys, bytes and scores of the rows that the stack evicted.
        """
        stack, demotion = self._stack, self._demotion
        try:
            stack.num_writes += 1
            num_refused = self._num_unseen - num_inserted if self._num_unseen else 0
            num_written = len(keys) - num_refused
            stack.first.meter.wrote(num_written * stack.table.row_bytes, seconds)
            left = None
            if evicted is not None:
                left = EvictedRows(evicted[0], evicted[1].view(stack.table.numpy_dtype), evicted[2])
                stack.first.meter.counters.evictions += len(left)
                demotion.hand_down(0, left)
            if demotion.is_through:
                self._write_through(keys, left)
            stack.add_rows(num_inserted)
        finally:
            stack.lock.end_writing()
        demotion.send_down()
        gone = stack.take_evicted()
        return None if gone is None else (gone.keys, gone.rows.view(np.uint8), gone.scores)

    def abort_update(self) -> None:
        """Ends an update that changed no row."""
        self._stack.lock.end_writing()

    def _write_through(self, keys: Keys, left: EvictedRows | None) -> None:
        """Writes the changed rows to the lower tiers, including evicted ones."""
        stack = self._stack
        if left is not None:
            is_changed = np.isin(left.keys, keys)
            self._demotion.write_through(left.keys[is_changed], left.rows[is_changed])
        rows = np.empty((len(keys), stack.table.width), stack.table.numpy_dtype)
        found = np.empty(len(keys), np.bool_)
        stack.first.storage._find_impl(keys, Columns(0, stack.table.width), rows, found)
        self._demotion.write_through(keys[found], rows[found])
