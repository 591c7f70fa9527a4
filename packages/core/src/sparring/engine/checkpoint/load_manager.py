"""Loads of a container: at most one at a time, in the caller's thread or in the background.

A load in the background holds the tables and the collective: whatever reads, changes or counts rows, or
meets other ranks, first waits for it (`sparring.engine.state`). It waits as long as the load takes,
which other ranks bear: they are in the same load, where ranks meet every two seconds, and one that is
gone fails it on all others within the collective's deadline.
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from functools import partial
from typing import Protocol

from sparring.contracts.checkpoint import LoadResult
from sparring.errors import ClosedError, DeadlineError, PeerFailure
from sparring.runtime import events
from sparring.runtime.events import BackgroundError, EventLoop
from sparring.runtime.lifecycle import at_exit
from sparring.runtime.pool import Task

__all__ = ["LoadJob", "LoadManager"]

_STOP_SECONDS = 5.0
"""How long `stop` waits for the end of a load: a chunk of rows is written meanwhile."""


class LoadJob(Protocol):
    """A load that ranks have agreed on; see `sparring.engine.checkpoint.load.Load`."""

    url: str

    def run(self) -> LoadResult: ...
    def stop(self, reason: BaseException) -> None: ...
    def give_up(self, reason: BaseException, *, waits: bool = True) -> None: ...


class LoadManager:
    """See `StepContainer.load`."""

    def __init__(self) -> None:
        self.num_begun = 0
        """Loads of which rows may have changed."""
        self._load: LoadJob | None = None
        self.task: Task[LoadResult] | None = None
        """A load in the background, until it was joined."""
        self.ended: Task[LoadResult] | None = None
        """The last one, until `check` has looked at it."""
        # Registered after the end of the collective, and called before it.
        at_exit(self._close_at_exit)

    def run(self, load: LoadJob) -> LoadResult:
        """Loads on this thread."""
        self.num_begun += 1
        self._load = load
        try:
            return load.run()
        finally:
            self._load = None

    def begin(self, load: LoadJob, events: EventLoop) -> Task[LoadResult]:
        """Loads on the event loop."""
        self.num_begun += 1
        self._load = load
        try:
            task = events.submit(load.run, name=f"load of {load.url}", report_failure=False)
        except BaseException as own_error:
            self._load = None
            load.give_up(own_error)
            raise
        self.task = task
        task.on_cancel(partial(load.give_up, CancelledError(), waits=False))
        return task

    def join(self) -> None:
        """Returns when no load runs; `check` raises its failure. KeyboardInterrupt while waiting stops
        the load."""
        self._wait(None)

    def check(self) -> None:
        """Raises the failure of the last load in the background, after `join`, unless its task has.

        Raises:
            PeerFailure: a rank is gone.
            BackgroundError: from any other failure.
        """
        task, self.ended = self.ended, None
        failure = None if task is None else task.failure()
        if task is None or failure is None or task.was_reported:
            return
        if isinstance(failure, PeerFailure):
            raise failure
        raise BackgroundError(
            f"background work {task.name!r} failed: {type(failure).__name__}: {failure}",
            name=task.name,
            num_failed=1,
        ) from failure

    def stop(self, reason: BaseException) -> None:
        """Ends a load that runs, as soon as it may be; `check` does not raise it then.

        Args:
            reason: for the message, here and on other ranks.
        """
        load, task = self._load, self.task
        if load is None or task is None:
            return
        load.stop(reason)
        task.wait(_STOP_SECONDS)
        task.was_reported = True

    def close(self, timeout: float) -> None:
        """Waits for a load that runs, and stops it where it takes too long.

        Args:
            timeout: seconds.

        Raises:
            DeadlineError: it took too long, and tables hold a part of the snapshot.
            BackgroundError: as `check`.
        """
        task = self.task
        if task is not None and not self._wait(timeout):
            self.stop(ClosedError("its container was closed, or the program ended"))
            raise DeadlineError(
                f"{task.name} was given {timeout} s to end when its container was closed, or the "
                "program ended, and has not: it was stopped, and tables that outlive the process "
                "hold a part of the rows. Wait for it first (result()), and load it again",
                name=task.name,
                timeout=timeout,
            )
        self.check()

    def _wait(self, timeout: float | None) -> bool:
        load, task = self._load, self.task
        if load is None or task is None:
            return True
        try:
            if not task.wait(timeout):
                return False
        except BaseException as reason:
            self.stop(reason)
            raise
        if task.cancelled():
            load.give_up(CancelledError())
        self._load, self.task, self.ended = None, None, task
        return True

    def _close_at_exit(self) -> None:
        self.close(events.EXIT_SECONDS)
