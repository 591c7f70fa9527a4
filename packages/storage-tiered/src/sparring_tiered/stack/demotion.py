"""Demotion of rows: evicted rows wait in the write buffer of the next tier until it stores them.

hand_down ──► write buffer ──send_down──► the tier below; the last tier in the background,
                 ▲                        if it supports concurrent readers
                 └── settle: retries failed writes, or waits for buffer capacity
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
    """Moves rows between the tiers of a stack. Only the thread that writes to the stack may use it.

    Args:
        stack: Stack of the rows. Its lock is acquired for writing while readers could miss moving rows.
        options: Options of the stack.
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
        """Uses `background` for writes to the last tier, if it supports concurrent readers."""
        if self._is_background and not self._stack.last.excludes_readers:
            self.write_back.use(background)

    @property
    def num_buffered_rows(self) -> int:
        """Number of rows in the write buffers."""
        return sum(tier.write_buffer.num_rows for tier in self._stack.tiers)

    def clear_failure(self) -> None:
        """Discards an unreported failure, because all rows were removed."""
        self._was_failure_reported = True

    # -- into the write buffers; requires the lock for writing ----------------------

    def hand_down(self, place: int, evicted: EvictedRows) -> None:
        """Adds rows that a tier evicted to the write buffer of the next tier, if they are dirty."""
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
        """Adds rows that remain in the first tier to the write buffer of the second tier."""
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

    # -- out of the write buffers --------------------------------------------------

    def send_down(self) -> None:
        """Writes buffered rows to the lower tiers.

        Rows of a failed write stay buffered. With write-through, the error is raised immediately;
        otherwise the next write or the background raises it.

        Raises:
            SparringError: A tier failed to store rows with write-through.
        """
        try:
            self._write_buffers(self._stack.tiers[:-1])
            if not self.write_back.begin():
                self._write_buffers(self._stack.tiers)
        except Exception as error:
            if self.is_through:
                self._was_failure_reported = True
                raise self._failure(error, "no row is lost") from error
            self._was_failure_reported = False

    def settle(self, num_rows: int) -> None:
        """Prepares a write of `num_rows` rows: retries failed writes, and waits for buffer capacity.

        Raises:
            SparringError: A lower tier failed before and fails again; raised by the first write after it.
            CapacityError: The buffers are full, and a lower tier still fails.
            DeadlineError: The buffers are full, and a write to the last tier did not end before the
                deadline.
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
                    f"table {name!r}: {num_buffered_rows} rows ({self._count_buffered_bytes()} bytes) "
                    f"are buffered for a lower tier that fails ({type(error).__name__}: {error}), and "
                    f"{num_rows} more might exceed buffer_bytes={self._buffer_bytes}. This write changed "
                    "nothing. Repair that tier, or raise buffer_bytes",
                    table=name,
                    num_buffered_rows=num_buffered_rows,
                ) from error

    def wait_for_capacity(self) -> None:
        """Calls `settle` for a write of the same size as the last one; see `SupportsBackground`."""
        if self.write_back.is_on:
            self.settle(self._num_written)

    def join(self) -> None:
        """Waits until no background write is in progress.

        Raises:
            DeadlineError: A write did not end before the deadline.
        """
        self.write_back.wait()

    def drain(self) -> None:
        """Writes all buffered rows to the lower tiers.

        Raises:
            SparringError: A tier failed. Rows that were not stored remain buffered.
        """
        self.join()
        try:
            self._write_buffers(self._stack.tiers)
        except Exception as error:
            self._was_failure_reported = True
            raise self._failure(error, "no further row is durable") from error

    def _has_space(self, num_rows: int) -> bool:
        more = num_rows * (self._stack.table.row_bytes + _SCORE_AND_KEY_BYTES)
        return self._count_buffered_bytes() + more <= self._buffer_bytes

    def _count_buffered_bytes(self) -> int:
        return sum(tier.write_buffer.num_bytes for tier in self._stack.tiers)

    def _write_buffers(self, tiers: Sequence[Tier]) -> None:
        """Writes buffered rows to the tiers, from the top; evicted rows move to the next buffer."""
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
        evicted = tier.receive(arriving)
        # Cleared first: the tier may have evicted rows that have just arrived.
        tier.write_buffer.clear()
        self.hand_down(place, evicted)
        if self.is_through and not tier.is_last:
            self._stack.tiers[place + 1].write_buffer.add(
                arriving.keys, arriving.rows, arriving.scores
            )

    def _background_failure(self, cause: Exception) -> SparringError:
        return self._failure(cause, "the earlier steps changed their rows", self._stack.last)

    def _failure(self, cause: Exception, state: str, tier: Tier | None = None) -> SparringError:
        kind = next((each for each in _TYPED if isinstance(cause, each)), StorageIOError)
        tiers = self._stack.tiers
        # Buffers are empty if the failure happened after they were written.
        failing = tier or next((tier for tier in tiers if tier.write_buffer), self._stack.last)
        name, num_buffered_rows = self._stack.table.name, self.num_buffered_rows
        return kind(
            f"table {name!r}: writing rows to tier {failing.backend!r} failed "
            f"({type(cause).__name__}: {cause}); {num_buffered_rows} rows are buffered in memory, "
            f"and finds return them; {state}. Repair that tier; the next write or flush writes "
            "the rows to it",
            table=name,
            backend=failing.backend,
            num_buffered_rows=num_buffered_rows,
        )
