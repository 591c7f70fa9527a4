"""Undo rows of a running save: their memory, and how much of a processor the save takes.

An undo row is what a row was before a step wrote to it. Where steps keep all cores busy, a second that
a save computes is a second that some thread of a step waits; and as the threads of a step wait for each
other, the step loses all of it. So the processor time of all threads of a save together is kept to a
share (`Throttle`). A lower thread priority does not help: a thread that holds the interpreter's lock and
is given no core stops the step altogether. Steps alone take 7.6 ms, with a save without pauses 38.2 ms,
with a share of 0.15 9.1 ms (docs/explanation/performance.md).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.contracts.results import Keys, Rows

__all__ = ["Throttle", "UndoBudget", "UndoRows"]


@dataclass(frozen=True, slots=True)
class UndoRows:
    """Rows as they were before a step wrote to them."""

    keys: Keys
    """``(n,)``"""
    rows: Rows
    """``(n, width)``; undefined where `found` is False."""
    found: npt.NDArray[np.bool_]
    """``(n,)``: False where the key had no row."""

    @property
    def num_bytes(self) -> int:
        return self.keys.nbytes + self.rows.nbytes + self.found.nbytes


class UndoBudget:
    """Bytes of undo rows that all tables of a save may hold together.

    A step that finds the budget used up waits until the save has written some. So the most that
    is held is the budget and the rows of one step.

    Args:
        limit_bytes: from which on steps wait.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.most_bytes = 0
        self.num_rows = 0
        self.wait_seconds = 0.0
        self._used_bytes = 0
        self._is_over = False
        self._changed = threading.Condition()

    def take(self, rows: UndoRows) -> None:
        """Counts rows that are held from now on."""
        with self._changed:
            self._used_bytes += rows.num_bytes
            self.num_rows += len(rows.keys)
            self.most_bytes = max(self.most_bytes, self._used_bytes)

    @property
    def is_half_used(self) -> bool:
        """Whether it is time to write undo rows of tables whose turn has not come."""
        return 2 * self._used_bytes >= self.limit_bytes

    @property
    def is_urgent(self) -> bool:
        """Whether steps may soon have to wait, or the save is over."""
        return 4 * self._used_bytes >= 3 * self.limit_bytes or self._is_over

    def give_back(self, num_bytes: int) -> None:
        """Undo rows of so many bytes were written and freed."""
        if num_bytes:
            with self._changed:
                self._used_bytes -= num_bytes
                self._changed.notify_all()

    def end(self) -> None:
        """The save is over: no step waits any more."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait_for_room(self, seconds: float) -> bool:
        """Returns True when a step may hold more rows, False if that takes longer."""
        with self._changed:
            if self._used_bytes < self.limit_bytes or self._is_over:
                return True
            begin = time.perf_counter()
            has_room = self._changed.wait_for(
                lambda: self._used_bytes < self.limit_bytes or self._is_over, seconds
            )
            self.wait_seconds += time.perf_counter() - begin
            return has_room


_LOOK_SECONDS = 0.02
"""Interval at which a pause looks for a reason to end."""


class Throttle:
    """Holds the threads of a save to a share of the time of one core.

    Each thread tells when it has ended a piece of work. What that took is booked on a calendar that
    all of them share, the longer the smaller the share is, and the thread sleeps to the end of its
    entry. So together they take the share, however many they are. Unused time is not saved up.

    Args:
        share: of the time of one core, above 0; 1 or more: no pauses.
        budget: of undo rows: there is no pause while it is nearly used up, or when the save is over.
    """

    def __init__(self, share: float, budget: UndoBudget) -> None:
        self._share, self._budget = share, budget
        self._thread = threading.local()
        self._is_awaited = threading.Event()
        self._lock = threading.Lock()  # guards what follows
        self._free_at = 0.0
        self.worked_seconds = 0.0
        """Processor time of all threads, as far as it was booked."""

    def begin(self) -> None:
        """Leaves out what the calling thread did before. Threads that the save starts need not call
        it."""
        self._thread.before = time.thread_time()

    def unthrottle(self) -> None:
        """Ends all pauses, as a caller waits for the end of the save."""
        self._is_awaited.set()

    def pause(self) -> None:
        """Called by each thread after each piece of work, of some milliseconds at best."""
        before = getattr(self._thread, "before", 0.0)
        self._thread.before = time.thread_time()
        worked = self._thread.before - before
        now = time.perf_counter()
        with self._lock:
            self.worked_seconds += worked
            self._free_at = max(self._free_at, now - worked) + worked / self._share
            end = self._free_at
        if self._share >= 1:
            return
        while now < end and not self._budget.is_urgent:
            if self._is_awaited.wait(min(end - now, _LOOK_SECONDS)):
                break
            now = time.perf_counter()
        if now < end:
            with self._lock:  # what an urgent save does without pauses is not paid for later
                self._free_at = min(self._free_at, now)
