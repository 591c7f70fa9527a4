"""The first tier's own update and visit, with the stack around them.

Where the first tier is native, rows that it has are read and changed where they lie. Before an
update, the rows of keys that exist further down are brought up; afterwards, what left goes down.
``native/bindings/front.h`` calls this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparring.storage.contract import Columns, Evicted, Keys, Rows, Scores

if TYPE_CHECKING:
    from sparring.storage.tiered.storage import TieredStorage

__all__ = ["Fronting"]


class Fronting:
    """What native code tells a stack while it works on the first tier."""

    def __init__(self, stack: TieredStorage) -> None:
        self._stack = stack
        self._num_unseen = 0

    @property
    def first(self) -> object:
        """The first tier's native twin."""
        return self._stack.tiers[0].__sparring_storage__()

    def begin_visit(self) -> None:
        """Rows of the first tier will be read; `end_visit` must follow."""
        self._stack._check_open()
        self._stack._lock.begin_reading()

    def end_visit(self, num_served: int, read_bytes: int, seconds: float) -> None:
        """So many keys were read from the first tier, in so long, what was done with their rows
        where they lie included."""
        self._stack._lock.end_reading()
        self._stack._first.meter.found(num_served, 0, read_bytes=read_bytes, seconds=seconds)

    def begin_update(self, keys: Keys) -> None:
        """Takes up what was staged. The stack is locked until `end_update` or `abort_update`.

        Raises:
            SparringError: a lower tier failed; no row has changed.
        """
        stack = self._stack
        self._num_unseen = 0
        stack._check_open()
        stack._settle(keys)
        stack._lock.begin_writing()
        try:
            # All of it: rows that a step looked up below are those that it changes now.
            stack._promote(stack._staging.take(), keys[:0])
            if not stack._descent.is_through:
                stack._first.note_dirty(keys)
        except BaseException:
            stack._lock.end_writing()
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
        stack._find_below(missing, whole, rows, found, is_staged=False)
        self._num_unseen = len(missing) - int(np.count_nonzero(found))
        if not found.any():
            return True
        evicted = stack._first.upsert(missing[found], rows[found], None)
        stack._descent.hand_down(0, evicted)
        return not np.isin(evicted.keys, keys).any()

    def end_update(
        self,
        keys: Keys,
        num_inserted: int,
        evicted: tuple[Keys, Rows, Scores] | None,
        seconds: float,
    ) -> tuple[Keys, Rows, Scores] | None:
        """The rows of `keys` have changed, but for those that were not admitted.

        Args:
            keys: of the update.
            num_inserted: how many of them are new.
            evicted: what had to leave, as keys, bytes and scores.
            seconds: how long the first tier's own update took.

        Returns:
            What left the stack altogether.
        """
        stack = self._stack
        try:
            stack._num_writes += 1
            num_refused = self._num_unseen - num_inserted if self._num_unseen else 0
            num_written = len(keys) - num_refused
            stack._first.meter.wrote(num_written * stack.table.row_bytes, seconds)
            left = stack._nothing_evicted()
            if evicted is not None:
                left = Evicted(evicted[0], evicted[1].view(stack.table.numpy_dtype), evicted[2])
            stack._first.meter.counters.evictions += len(left)
            stack._descent.hand_down(0, left)
            if stack._descent.is_through:
                self._hold_changed(keys, left)
            stack._add_rows(num_inserted)
        finally:
            stack._lock.end_writing()
        stack._descent.send_down()
        gone = stack._take_gone()
        if not len(gone):
            return None
        return gone.keys, gone.rows.view(np.uint8), gone.scores

    def abort_update(self) -> None:
        """No row has changed."""
        self._stack._lock.end_writing()

    def _hold_changed(self, keys: Keys, left: Evicted) -> None:
        """Who writes through sends the changed rows down too."""
        stack = self._stack
        is_changed = np.isin(left.keys, keys)
        stack._descent.hold_all(1, left.keys[is_changed], left.rows[is_changed])
        rows = np.empty((len(keys), stack.table.width), stack.table.numpy_dtype)
        found = np.empty(len(keys), np.bool_)
        stack._first.storage._find_impl(keys, Columns(0, stack.table.width), rows, found)
        stack._descent.hold_all(1, keys[found], rows[found])
