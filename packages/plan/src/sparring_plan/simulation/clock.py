"""Simulated time that advances from event to event, and workers that process one item at a time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

__all__ = ["Clock", "Worker", "compute_covered_seconds"]


class Clock:
    """Calls functions in the order of their times; functions with equal times in the order of
    registration."""

    def __init__(self) -> None:
        self.now = 0.0
        self._num_asked = 0
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Calls `call` at `time`, or now if that time has passed."""
        heapq.heappush(self._waiting, (max(time, self.now), self._num_asked, call))
        self._num_asked += 1

    def run(self) -> None:
        """Runs until there is nothing left to call."""
        while self._waiting:
            self.now, _, call = heapq.heappop(self._waiting)
            call()


class Worker:
    """A thread or one direction of a link: processes one item after another."""

    def __init__(self) -> None:
        self.free_at = 0.0
        self.spans: list[tuple[float, float]] = []
        """Busy intervals, sorted and without overlap."""

    def take(self, earliest: float, seconds: float) -> float:
        """Works for `seconds` as soon as it is free, but not before `earliest`. Returns the end time."""
        begin = max(earliest, self.free_at)
        self.free_at = begin + seconds
        if seconds > 0:
            if self.spans and self.spans[-1][1] == begin:
                self.spans[-1] = (self.spans[-1][0], self.free_at)
            else:
                self.spans.append((begin, self.free_at))
        return self.free_at


def compute_covered_seconds(workers: Iterable[Worker]) -> float:
    """Returns how long at least one of the workers was busy."""
    total, end = 0.0, 0.0
    for begin, until in sorted(span for worker in workers for span in worker.spans):
        if until > end:
            total += until - max(begin, end)
            end = until
    return total
