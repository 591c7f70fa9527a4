"""Demotion of rows: evicted rows wait in the write buffer of the next tier until it takes them.

hand_down ──► write buffer ──send_down──► the tier below; the last one in the background,
                 ▲                        where there is one and the tier allows readers
                 └── settle: failed writes are tried again, or a write has to wait for room
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparring.contracts import Background, EvictedRows, Keys, Rows
from sparring.errors import (
    CapacityError,
    CorruptDataError,
    DeadlineError,
    SparringError,
    StorageIOError,
)
from sparring_tiered.options import TieredOptions
from sparring_tiered.stack.composition import are_in
from sparring_tiered.stack.promotion import Promotion
from sparring_tiered.stack.stack import Stack
from sparring_tiered.stack.tier import Tier
from sparring_tiered.stack.write_back import WriteBack

__all__ = ["Demotion"]

_SCORE_AND_KEY_BYTES = 16
_TYPED = (DeadlineError, CorruptDataError, CapacityError)


class Demotion:
    """Moves rows between the tiers of a stack. Only the thread that writes to the stack uses it.

    Args:
        stack: whose rows move; its lock is held for writing while readers may not see them.
        options: of the stack.
    """

    def __init__(self, stack: Stack, options: TieredOptions) -> None:
        self.is_through = options.write == "through"
        self._stack = stack
        self._buffer_bytes = options.buffer_bytes
        self._is_background = options.write_back == "background" and not self.is_through
        self._num_written = 0
        self._was_failure_reported = True
        self.write_back = WriteBack(
            stack.table.name, stack.last, options.deadline_seconds, self._background_failure
        )

    def use_background(self, background: Background) -> None:
        """Writes to the last tier there, where readers may see it change."""
        if self._is_background and not self._stack.last.excludes_readers:
            self.write_back.use(background)

    @property
    def num_buffered_rows(self) -> int:
        """Rows that wait in write buffers."""
        return sum(tier.write_buffer.num_rows for tier in self._stack.tiers)

    def clear_failure(self) -> None:
        """Drops an unreported failure: all rows were removed."""
        self._was_failure_reported = True

    # -- into the write buffers; the lock is held for writing -----------------------

    def hand_down(self, place: int, evicted: EvictedRows) -> None:
        """Puts rows that left a tier into the write buffer of the next."""
        if not len(evicted):
            return
        tiers = self._stack.tiers
        if place == len(tiers) - 1:
            self._stack.remove_evicted(evicted)
            return
        is_dirty = tiers[place].are_dirty(evicted.keys)
        tiers[place + 1].write_buffer.add(
            evicted.keys[is_dirty], evicted.rows[is_dirty], evicted.scores[is_dirty]
        )

    def write_through(self, keys: Keys, rows: Rows) -> None:
        """Puts rows that the first tier keeps into the write buffer of the second."""
        self._stack.tiers[1].write_buffer.add(keys, rows, np.zeros(len(keys), np.uint64))

    def promote(self, promotion: Promotion, but: Keys) -> None:
        """Copies promoted rows into the first tier, except for keys that are about to be written."""
        stack = self._stack
        for place in np.unique(promotion.origins).tolist():
            num_rows = int(np.count_nonzero(promotion.origins == place))
            stack.tiers[place].meter.counters.promotions += num_rows
        is_wanted = ~are_in(promotion.keys, np.sort(but))
        if is_wanted.any():
            self.hand_down(
                0,
                stack.first.upsert(promotion.keys[is_wanted], promotion.rows(is_wanted), None),
            )
        stack.promotion.give_back(promotion)

    # -- out of them ---------------------------------------------------------------

    def send_down(self) -> None:
        """Writes buffered rows to the tiers below.

        What fails stays buffered. Write-through raises at once; otherwise the next write or the
        background raises.

        Raises:
            SparringError: a tier did not take rows that are written through.
        """
        try:
            self._write_buffers(self._stack.tiers[:-1])
            if not self.write_back.begin():
                self._write_buffers(self._stack.tiers)
        except Exception as error:
            if self.is_through:
                self._was_failure_reported = True
                raise self._failure(error, "the rows are kept in memory") from error
            self._was_failure_reported = False

    def settle(self, num_rows: int) -> None:
        """Prepares a write of so many rows: tries again what failed, waits for room, and refuses
        the write where it must.

        Raises:
            SparringError: the first write after a lower tier failed, which still does.
            CapacityError: there is no room for buffered rows, and they cannot go down.
            DeadlineError: there is none, and a write to the last tier has not ended in time.
        """
        self._num_written = num_rows
        tiers = self._stack.tiers
        for tier in tiers:
            tier.trim_dirty()
        if not any(tier.write_buffer for tier in tiers):
            return
        is_background = self.write_back.is_on
        if is_background:
            self.write_back.wait(lambda: self._has_space(num_rows))
        try:
            self._write_buffers(tiers[:-1])
            if not (is_background and self._has_space(num_rows)):
                self._write_buffers(tiers)
        except Exception as error:
            if not self._was_failure_reported:
                self._was_failure_reported = True
                raise self._failure(error, "this write changed nothing") from error
            if not self._has_space(num_rows):
                name, num_buffered_rows = self._stack.table.name, self.num_buffered_rows
                raise CapacityError(
                    f"table {name!r}: {num_buffered_rows} rows wait in "
                    f"{self._count_buffered_bytes()} bytes for a "
                    f"lower tier that fails ({type(error).__name__}: {error}), and {num_rows} more "
                    f"might not fit into buffer_bytes={self._buffer_bytes}. This write "
                    "changed nothing. Mend that tier, or raise buffer_bytes",
                    table=name,
                    num_buffered_rows=num_buffered_rows,
                ) from error

    def wait_for_capacity(self) -> None:
        """As `settle`, for a write as large as the last one; see `SupportsBackground`."""
        if self.write_back.is_on:
            self.settle(self._num_written)

    def join(self) -> None:
        """Returns when no background write goes on; nothing has changed.

        Raises:
            DeadlineError: one has not ended in time.
        """
        self.write_back.wait()

    def drain(self) -> None:
        """Returns when all buffered rows have arrived.

        Raises:
            SparringError: a tier failed. Rows that did not arrive wait.
        """
        self.join()
        try:
            self._write_buffers(self._stack.tiers)
        except Exception as error:
            self._was_failure_reported = True
            raise self._failure(error, "nothing is durable yet that was not before") from error

    def _has_space(self, num_rows: int) -> bool:
        more = num_rows * (self._stack.table.row_bytes + _SCORE_AND_KEY_BYTES)
        return self._count_buffered_bytes() + more <= self._buffer_bytes

    def _count_buffered_bytes(self) -> int:
        return sum(tier.write_buffer.num_bytes for tier in self._stack.tiers)

    def _write_buffers(self, tiers: Sequence[Tier]) -> None:
        """Moves buffered rows into the tiers, from the top; rows that these evict go on down."""
        for place, tier in enumerate(tiers):
            if not tier.write_buffer:
                continue
            if tier.is_last:
                self.join()
            if tier.excludes_readers:
                with self._stack.lock.writing():
                    self._write_buffered(place)
            else:
                self._write_buffered(place)

    def _write_buffered(self, place: int) -> None:
        tier = self._stack.tiers[place]
        arriving = tier.write_buffer.merged()
        if not self.is_through:
            tier.note_dirty(arriving.keys)
        self.hand_down(place, tier.receive(arriving))
        if self.is_through and not tier.is_last:
            self._stack.tiers[place + 1].write_buffer.add(
                arriving.keys, arriving.rows, arriving.scores
            )
        tier.write_buffer.clear()

    def _background_failure(self, cause: Exception) -> SparringError:
        return self._failure(cause, "the steps before have changed their rows", self._stack.last)

    def _failure(self, cause: Exception, state: str, tier: Tier | None = None) -> SparringError:
        kind = next((each for each in _TYPED if isinstance(cause, each)), StorageIOError)
        failing = tier or next(tier for tier in self._stack.tiers if tier.write_buffer)
        name, num_buffered_rows = self._stack.table.name, self.num_buffered_rows
        return kind(
            f"table {name!r}: tier {failing.backend!r} did not take rows from above "
            f"({type(cause).__name__}: {cause}); {num_buffered_rows} rows wait in memory and are found "
            f"there, {state}. Mend that tier; the rows go down with the next write or flush",
            table=name,
            backend=failing.backend,
            num_buffered_rows=num_buffered_rows,
        )
