"""`CallWatch`: tracks the calls that occupy threads, and detects when all threads are stuck."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["CallWatch"]

_log = logging.getLogger(__name__)

_GRACE_SECONDS = 30.0
"""Time after its deadline for which a call may still occupy a thread."""
_NO_DEADLINE_SECONDS = 600.0
"""Time after which a call without a deadline is considered overdue."""
_MAX_SECONDS = 86_400.0
"""Longer deadlines mean that there is none."""


@dataclass(frozen=True, slots=True)
class _Call:
    waited_seconds: float
    begin: float
    deadline: float


class CallWatch:
    """Records which call each thread answers."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def call(self, arrived: float, remaining_seconds: float) -> Iterator[None]:
        """Records a call that this thread answers in the block.

        Args:
            arrived: Time of `time.monotonic` at which its headers arrived.
            remaining_seconds: Time until its deadline; more than a day if it has none.
        """
        now, thread = time.monotonic(), threading.get_ident()
        if remaining_seconds > _MAX_SECONDS:
            remaining_seconds = _NO_DEADLINE_SECONDS
        with self._lock:
            self._calls[thread] = _Call(now - arrived, now, now + remaining_seconds)
        try:
            yield
        finally:
            with self._lock:
                del self._calls[thread]

    def waited_seconds(self) -> float:
        """Returns the time that the call of this thread waited for the thread; 0 outside of calls."""
        with self._lock:
            call = self._calls.get(threading.get_ident())
        return 0.0 if call is None else call.waited_seconds

    def oldest_seconds(self) -> float:
        """Returns the time since the longest call in progress began; 0 without calls."""
        now = time.monotonic()
        with self._lock:
            return max((now - call.begin for call in self._calls.values()), default=0.0)

    def num_overdue(self) -> int:
        """Returns the number of calls that still occupy a thread long after their deadline."""
        limit = time.monotonic() - _GRACE_SECONDS
        with self._lock:
            return sum(call.deadline < limit for call in self._calls.values())

    def start(
        self, num_threads: int, on_stuck: Callable[[], None], interval_seconds: float = 1.0
    ) -> None:
        """Starts a thread that calls `on_stuck` once if overdue calls occupy all threads of the
        server."""

        def look() -> None:
            while not self._stop.wait(interval_seconds):
                if self.num_overdue() >= num_threads:
                    _log.critical(
                        "all %d threads (server.threads) are occupied by calls whose deadlines passed "
                        "more than %g s ago, so this server no longer answers calls; restart it and "
                        "check the storage behind it",
                        num_threads, _GRACE_SECONDS,
                    )  # fmt: skip
                    on_stuck()
                    return

        self._thread = threading.Thread(target=look, name="sparring-call-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
