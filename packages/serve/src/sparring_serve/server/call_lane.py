"""`CallLane`: threads for one kind of calls, with limits on calls that wait."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from sparring_serve.server.silent_calls import MAX_SILENT_CALLS, SilentCalls

__all__ = ["CallLane"]

_MAX_WAIT_SECONDS = 86_400.0


class CallLane:
    """Threads that answer one kind of calls, so that other kinds cannot occupy them.

    gRPC for Python waits for the message of a call on a thread. There are threads for all calls that
    wait, so that calls without a message do not reduce the number of calls that are answered.

    Args:
        name: Name of the threads.
        num_threads: Number of calls that are answered concurrently.
        max_calls: Maximum number of calls whose message has arrived, and that are answered or wait;
            further calls are rejected.
        num_slow: Number of calls whose messages may arrive slowly.
    """

    def __init__(
        self, name: str, num_threads: int, max_calls: int, num_slow: int = MAX_SILENT_CALLS
    ) -> None:
        self.max_calls = max_calls
        self.silent = SilentCalls(num_slow=num_slow)
        # Calls that arrive together exceed the limit of silent ones until the oldest are cancelled.
        self._max_open = max_calls + 2 * MAX_SILENT_CALLS
        self.threads = ThreadPoolExecutor(self._max_open, name)
        self._lock = threading.Lock()
        self._num_open = self._num_calls = 0
        self._num_free = num_threads
        self._queue: deque[threading.Lock] = deque()
        """Of calls that wait for others to be answered, oldest first; released when it is their turn."""

    def open(self) -> bool:
        """Counts a call whose headers have arrived, if a thread can wait for its message; returns
        whether it was counted."""
        with self._lock:
            has_room = self._num_open < self._max_open
            self._num_open += has_room
        return has_room

    def close_call(self) -> None:
        """Ends a call for which `open` returned True."""
        with self._lock:
            self._num_open -= 1

    def enter(self) -> bool:
        """Counts a call whose message has arrived, unless there are already `max_calls`; returns
        whether it was counted."""
        with self._lock:
            has_room = self._num_calls < self.max_calls
            self._num_calls += has_room
        return has_room

    def leave(self) -> None:
        """Ends a call for which `enter` returned True."""
        with self._lock:
            self._num_calls -= 1

    def begin(self, seconds: float) -> bool:
        """Waits until fewer than `num_threads` calls are answered, in the order of the calls; returns
        False after `seconds`."""
        turn = threading.Lock()
        with self._lock:
            if self._num_free:
                self._num_free -= 1
                return True
            turn.acquire()
            self._queue.append(turn)
        if turn.acquire(timeout=min(max(seconds, 0.0), _MAX_WAIT_SECONDS)):
            return True
        with self._lock:
            if turn not in self._queue:  # its turn came at this moment
                return True
            self._queue.remove(turn)
        return False

    def end(self) -> None:
        """Lets the next call begin, after a call for which `begin` returned True."""
        with self._lock:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._num_free += 1

    def close(self) -> None:
        """Waits for the calls in progress and ends the threads."""
        self.threads.shutdown(wait=True)
