"""`CallLane`: threads for one kind of calls, with a limit on waiting calls."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

__all__ = ["CallLane"]


class CallLane:
    """Threads that answer one kind of calls, so that other kinds cannot occupy them.

    Args:
        name: Name of the threads.
        num_threads: Number of calls that are answered concurrently.
        max_calls: Maximum number of calls that are answered or wait for a thread; further calls are
            rejected.
    """

    def __init__(self, name: str, num_threads: int, max_calls: int) -> None:
        self.threads = ThreadPoolExecutor(num_threads, name)
        self.max_calls = max_calls
        self._num_calls = 0
        self._lock = threading.Lock()

    def enter(self) -> bool:
        """Counts a call unless there are already `max_calls`; returns whether it was counted."""
        with self._lock:
            has_room = self._num_calls < self.max_calls
            self._num_calls += has_room
        return has_room

    def leave(self) -> None:
        """Ends a call for which `enter` returned True."""
        with self._lock:
            self._num_calls -= 1

    def close(self) -> None:
        """Waits for the calls in progress and ends the threads."""
        self.threads.shutdown(wait=True)
