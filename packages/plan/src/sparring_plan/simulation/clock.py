"""Time that passes from event to event, and things that do one piece of work at a time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

__all__ = ["Clock", "Worker", "compute_covered_seconds"]


class Clock:
    """Calls what is due, in the order of time; what is due at one time in the order of asking."""

    def __init__(self) -> None:
        self.now = 0.0
        self._num_asked = 0
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Calls `call` at `time`, or now where that is past."""
        heapq.heappush(self._waiting, (max(time, self.now), self._num_asked, call))
        self._num_asked += 1

    def run(self) -> None:
        """Returns when nothing is left to call."""
        while self._waiting:
            self.now, _, call = heapq.heappop(self._waiting)
            call()


class Worker:
    """A thread or one direction of a link: one piece of work after another."""

    def __init__(self) -> None:
        self.free_at = 0.0
        self.spans: list[tuple[float, float]] = []
        """When it was at work, in order, without overlap."""

    def take(self, earliest: float, seconds: float) -> float:
        """Works for `seconds` as soon as it is free, not before `earliest`. Returns when it ends."""
        begin = max(earliest, self.free_at)
        self.free_at = begin + seconds
        if seconds > 0:
            if self.spans and self.spans[-1][1] == begin:
                self.spans[-1] = (self.spans[-1][0], self.free_at)
            else:
                self.spans.append((begin, self.free_at))
        return self.free_at


def compute_covered_seconds(workers: Iterable[Worker]) -> float:
    """How long at least one of the workers was at work."""
    total, end = 0.0, 0.0
    for begin, until in sorted(span for worker in workers for span in worker.spans):
        if until > end:
            total += until - max(begin, end)
            end = until
    return total
