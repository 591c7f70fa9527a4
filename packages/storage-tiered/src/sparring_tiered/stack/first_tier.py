"""Access of native code to the rows of a native first tier, which change in place.

Before an update, the rows of keys that exist further down are brought up; afterwards, evicted
rows go down. ``native/bindings/front.h`` calls this.
"""

from __future__ import annotations

import numpy as np

from sparring.contracts import Columns, EvictedRows, Keys, Rows, Scores, get_capsule
from sparring_tiered.stack.demotion import Demotion
from sparring_tiered.stack.stack import Stack

__all__ = ["NativeFirstTier"]


class NativeFirstTier:
    """Calls that native code makes around its work; see `FirstTierAccess`."""

    def __init__(self, stack: Stack, demotion: Demotion) -> None:
        self._stack = stack
        self._demotion = demotion
        self._num_unseen = 0

    @property
    def first(self) -> object:
        """The capsule of the first tier."""
        return get_capsule(self._stack.first.storage)

    def begin_visit(self) -> None:
        """Begins to read rows of the first tier; `end_visit` must follow."""
        self._stack.check_open()
        self._stack.lock.begin_reading()

    def end_visit(self, num_served: int, read_bytes: int, seconds: float) -> None:
        """Ends it: so many keys were read in so long, which includes the work on their rows."""
        self._stack.lock.end_reading()
        self._stack.first.meter.found(num_served, 0, read_bytes=read_bytes, seconds=seconds)

    def begin_update(self, keys: Keys) -> None:
        """Takes the promoted rows. The stack is locked until `end_update` or `abort_update`.

        Raises:
            SparringError: a lower tier failed; no row has changed.
        """
        stack = self._stack
        self._num_unseen = 0
        stack.check_open()
        self._demotion.settle(len(keys))
        stack.lock.begin_writing()
        try:
            # All of them: rows that a step looked up below are those that it changes now.
            self._demotion.promote(stack.promotion.take(), keys[:0])
            if not self._demotion.is_through:
                stack.first.note_dirty(keys)
        except BaseException:
            stack.lock.end_writing()
            raise

    def bring_up(self, keys: Keys, missing: Keys) -> bool:
        """Copies rows that exist below into the first tier.

        Args:
            keys: of the update.
            missing: those that the first tier lacks.

        Returns:
            Whether all of `keys` that exist are in the first tier now.

        Raises:
            SparringError: a lower tier failed; no row has changed.
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
        """Ends it: the rows of `keys` have changed, except those that were not admitted.

        Args:
            keys: of the update.
            num_inserted: how many of them are new.
            evicted: rows that had to leave, as keys, bytes and scores.
            seconds: how long the first tier's own update took.

        Returns:
            The rows that left the stack altogether.
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
        """Ends it: no row has changed."""
        self._stack.lock.end_writing()

    def _write_through(self, keys: Keys, left: EvictedRows | None) -> None:
        """Sends the changed rows down, evicted ones too."""
        stack = self._stack
        if left is not None:
            is_changed = np.isin(left.keys, keys)
            self._demotion.write_through(left.keys[is_changed], left.rows[is_changed])
        rows = np.empty((len(keys), stack.table.width), stack.table.numpy_dtype)
        found = np.empty(len(keys), np.bool_)
        stack.first.storage._find_impl(keys, Columns(0, stack.table.width), rows, found)
        self._demotion.write_through(keys[found], rows[found])
