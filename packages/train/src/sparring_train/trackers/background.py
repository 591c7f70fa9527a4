"""Calls a tracker on its own thread, so that a slow or unreachable server does not delay training."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from sparring_train.trackers.contract import Tracker

__all__ = ["BackgroundTracker"]

_MAX_CALLS = 1000
"""Maximum number of calls that wait. Later ones are dropped and counted."""


class BackgroundTracker:
    """Repeats nothing: a call that fails is counted, and the next one is attempted.

    Args:
        kind: kind of the tracker, for messages.
        tracker: an open tracker.

    Attributes:
        num_failures: number of calls that failed or were dropped.
        first_error: error of the first one; None as long as all calls succeeded.
    """

    def __init__(self, kind: str, tracker: Tracker) -> None:
        self.kind, self.tracker = kind, tracker
        self.num_failures = 0
        self.first_error: Exception | None = None
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(_MAX_CALLS)
        # A daemon, because a call to a server that does not answer must not keep the process.
        self._thread = threading.Thread(target=self._work, name=f"sparring-{kind}", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], None]) -> None:
        """Makes a call to the tracker later. Returns at once."""
        try:
            self._calls.put_nowait(work)
        except queue.Full:
            self._count(TimeoutError(f"{_MAX_CALLS} calls are waiting"))

    def close(self, seconds: float, *, succeeded: bool) -> None:
        """Closes the tracker after the pending calls, and waits for that at most `seconds`."""
        self.call(partial(self.tracker.close, succeeded=succeeded))
        with suppress(queue.Full):  # The thread still waits for its server, which is counted below.
            self._calls.put(None, timeout=seconds)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._count(TimeoutError(f"pending calls were not answered within {seconds:g} s"))

    def _work(self) -> None:
        while (work := self._calls.get()) is not None:
            try:
                work()
            except Exception as error:
                self._count(error)

    def _count(self, error: Exception) -> None:
        self.num_failures += 1
        self.first_error = self.first_error or error
