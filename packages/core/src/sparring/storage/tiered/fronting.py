"""The first tier's own update and visit, with the stack around them.

Where the first tier is native, rows that it has are read and changed where they lie. Before an
update, the rows of keys that exist further down are brought up; afterwards, what left goes down.
``native/bindings/front.h`` calls this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparring.storage.contract import Columns, Evicted, Keys, Rows, Scores
from sparring.storage.tiered.staging import Staged

if TYPE_CHECKING:
    from sparring.storage.tiered.storage import TieredStorage

__all__ = ["Fronting"]


class Fronting:
    """What native code tells a stack while it works on the first tier."""

    def __init__(self, stack: TieredStorage) -> None:
        self._stack = stack

    @property
    def first(self) -> object:
        """The first tier's native twin."""
        return self._stack.tiers[0].__sparring_storage__()

    def begin_visit(self) -> None:
        """Rows of the first tier will be read; `end_visit` must follow."""
        self._stack._check_open()
        self._stack._lock.begin_reading()

    def end_visit(self, num_served: int) -> None:
        """So many keys were read from the first tier."""
        self._stack._lock.end_reading()
        row_bytes = self._stack.table.row_bytes
        self._stack._first.meter.found(
            num_served, 0, read_bytes=num_served * row_bytes, seconds=0.0
        )

    def begin_update(self, keys: Keys) -> bool:
        """Brings up all rows of `keys` that exist below.

        Returns:
            Whether they are all in the first tier now. Then the stack is locked until `end_update`
            or `abort_update`; otherwise the rows must be found and upserted.

        Raises:
            SparringError: a lower tier failed; no row has changed.
        """
        stack = self._stack
        stack._check_open()
        stack._settle(len(keys))
        staged = stack._staging.take()
        missing = keys[~stack._first.has(keys)]
        below = self._rows_below(missing, staged)
        stack._lock.begin_writing()
        try:
            stack._promote(staged, keys)
            stack._staging.clear()
            fits = self._bring_up(keys, below)
            if fits and not stack._is_through:
                stack._first.note_dirty(keys)
        except BaseException:
            stack._lock.end_writing()
            raise
        if not fits:
            stack._lock.end_writing()
        return fits

    def end_update(
        self, keys: Keys, num_inserted: int, evicted: tuple[Keys, Rows, Scores] | None
    ) -> tuple[Keys, Rows, Scores] | None:
        """The rows of `keys` have changed; `evicted` had to leave, as keys, bytes and scores.

        Returns:
            What left the stack altogether.
        """
        stack = self._stack
        try:
            stack._num_writes += 1
            stack._first.meter.counters.written_bytes += len(keys) * stack.table.row_bytes
            left = stack._nothing_evicted()
            if evicted is not None:
                left = Evicted(evicted[0], evicted[1].view(stack.table.numpy_dtype), evicted[2])
            stack._first.meter.counters.evictions += len(left)
            stack._hand_down(0, left)
            if stack._is_through:
                self._hold_changed(keys, left)
            stack._add_rows(num_inserted)
        finally:
            stack._lock.end_writing()
        stack._send_down()
        gone = stack._take_gone()
        if not len(gone):
            return None
        return gone.keys, gone.rows.view(np.uint8), gone.scores

    def abort_update(self) -> None:
        """The first tier refused; its rows are as they were."""
        self._stack._lock.end_writing()

    def _rows_below(self, missing: Keys, staged: Staged) -> tuple[Keys, Rows]:
        """Keys of `missing` that exist below, and their rows."""
        stack = self._stack
        rows = np.empty((len(missing), stack.table.width), stack.table.numpy_dtype)
        found = np.zeros(len(missing), np.bool_)
        if not len(missing):
            return missing, rows
        if len(staged.keys):
            places = np.minimum(np.searchsorted(staged.keys, missing), len(staged.keys) - 1)
            found = staged.keys[places] == missing
            rows[found] = staged.rows[places[found]]
        whole = Columns(0, stack.table.width)
        stack._find_below(missing, whole, rows, found, is_staged=False)
        return missing[found], rows[found]

    def _bring_up(self, keys: Keys, below: tuple[Keys, Rows]) -> bool:
        """Whether all of `keys` that exist are in the first tier now."""
        stack = self._stack
        below_keys, rows = below
        if not len(below_keys):
            return True
        evicted = stack._first.upsert(below_keys, rows, None)
        stack._hand_down(0, evicted)
        return not np.isin(evicted.keys, keys).any()

    def _hold_changed(self, keys: Keys, left: Evicted) -> None:
        """Who writes through sends the changed rows down too."""
        stack = self._stack
        is_changed = np.isin(left.keys, keys)
        stack._hold_all(1, left.keys[is_changed], left.rows[is_changed])
        rows = np.empty((len(keys), stack.table.width), stack.table.numpy_dtype)
        found = np.empty(len(keys), np.bool_)
        stack._first.storage._find_impl(keys, Columns(0, stack.table.width), rows, found)
        stack._hold_all(1, keys[found], rows[found])
