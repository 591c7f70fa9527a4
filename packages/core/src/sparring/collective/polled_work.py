"""Operations of libraries that must be asked whether they are done, and whose waits have no end."""

from __future__ import annotations

import os
import time
from abc import abstractmethod

from sparring.contracts.collective import Work
from sparring.errors import SparringError

__all__ = ["Pause", "PolledWork"]

# A step's messages come within milliseconds: until then a yield costs the least time. A call that waits
# longer waits for another rank's computing, and should leave it the processor.
_SPIN_SECONDS = 0.002
_SHORTEST_SLEEP, _LONGEST_SLEEP = 20e-6, 1e-3


class Pause:
    """The pause between two questions: at first a yield, after a while ever longer sleeps."""

    __slots__ = ("_sleep_seconds", "_spin_until")

    def __init__(self) -> None:
        self._spin_until = time.monotonic() + _SPIN_SECONDS
        self._sleep_seconds = _SHORTEST_SLEEP

    def __call__(self) -> None:
        if time.monotonic() < self._spin_until:
            os.sched_yield()
            return
        time.sleep(self._sleep_seconds)
        self._sleep_seconds = min(self._sleep_seconds * 1.2, _LONGEST_SLEEP)


class PolledWork(Work):
    """A work whose backend can be asked, but not waited for with a deadline.

    A backend writes `_test` and `_trouble`.

    Args:
        deadline_seconds: counted from the first question.
    """

    def __init__(self, deadline_seconds: float) -> None:
        self._deadline_seconds = deadline_seconds
        self._limit: float | None = None
        self._is_done = False
        self._error: SparringError | None = None

    def done(self) -> bool:
        return self._is_done or self._error is not None or self._advance()

    def wait(self) -> None:
        if not self.done():
            pause = Pause()
            while not self._advance():
                pause()
        if self._error is not None:
            raise self._error

    @abstractmethod
    def _test(self) -> bool:
        """Whether the transfer is complete; drives it on.

        Raises:
            SparringError: it never will be.
        """

    @abstractmethod
    def _trouble(self, limit: float, now: float) -> SparringError | None:
        """Why waiting on is in vain, if it is; at `limit` at the latest it is.

        Args:
            limit: when the deadline passes, as `time.monotonic` has it.
            now: what `time.monotonic` says.
        """

    def _advance(self) -> bool:
        now = time.monotonic()
        if self._limit is None:
            self._limit = now + self._deadline_seconds
        try:
            self._is_done = self._test()
        except SparringError as error:
            self._error = error
            return True
        if not self._is_done:
            self._error = self._trouble(self._limit, now)
        return self._is_done or self._error is not None
