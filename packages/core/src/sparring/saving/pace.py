"""How much of a processor the threads of a save take from the steps beside them.

Where steps keep all cores busy, a second that a save computes is a second that some thread of a step
waits; and as the threads of a step wait for each other, the step loses all of it. So what counts is
the processor time of all threads of a save together, and that is what is kept to a share.
"""

from __future__ import annotations

import threading
import time

from sparring.saving.kept_rows import KeptBudget

__all__ = ["Pace"]

_LOOK_SECONDS = 0.02
"""How often a pause looks whether there is a reason to end it."""


class Pace:
    """Lets the threads of a save work for a share of the time of one core.

    Each thread tells when it has ended a piece of work. What that took is booked on a calendar that
    all of them share, the longer the smaller the share is, and the thread sleeps to the end of its
    entry. So together they take the share, however many they are. Unused time is not saved up.

    Args:
        share: of the time of one core, above 0; 1 or more: no pauses.
        budget: of old rows: there is no pause while it is nearly used up, or when the save is over.
    """

    def __init__(self, share: float, budget: KeptBudget) -> None:
        self._share, self._budget = share, budget
        self._thread = threading.local()
        self._hurried = threading.Event()
        self._lock = threading.Lock()  # guards what follows
        self._free_at = 0.0
        self.worked_seconds = 0.0
        """Processor time of all threads, as far as it was booked."""

    def begin(self) -> None:
        """What the calling thread did before is not the save's. Threads that the save starts need
        not call it."""
        self._thread.before = time.thread_time()

    def hurry(self) -> None:
        """No more pauses: somebody waits for the end."""
        self._hurried.set()

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
            if self._hurried.wait(min(end - now, _LOOK_SECONDS)):
                break
            now = time.perf_counter()
        if now < end:
            with self._lock:  # what an urgent save does without pauses is not paid for later
                self._free_at = min(self._free_at, now)
