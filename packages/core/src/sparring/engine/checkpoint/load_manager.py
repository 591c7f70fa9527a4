"""Loads of a container: at most one at a time, in the caller's thread or in the background.

A load in the background uses the tables and the collective: operations that read, change or count rows,
or communicate with other ranks, first wait for it (`sparring.engine.state`), without a timeout. Other
ranks are in the same load and exchange messages every two seconds, so the load fails on all ranks
within the collective's deadline if one of them is gone.
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
"""Maximum time that `stop` waits for a load, which first writes its current chunk of rows."""


class LoadJob(Protocol):
    """A load that ranks have agreed on; see `sparring.engine.checkpoint.load.Load`."""

    url: str

    def run(self) -> LoadResult: ...
    def stop(self, reason: BaseException) -> None: ...
    def give_up(self, reason: BaseException, *, waits: bool = True) -> None: ...


class LoadManager:
    """The loads of a container; see `StepContainer.load`."""

    def __init__(self) -> None:
        self.num_begun = 0
        """Number of loads that may have changed rows."""
        self._load: LoadJob | None = None
        self.task: Task[LoadResult] | None = None
        """Load in the background, until it was joined."""
        self.ended: Task[LoadResult] | None = None
        """Last joined load, until `check` has processed it."""
        # Registered after the function that ends the collective, and therefore called before it.
        at_exit(self._close_at_exit)

    def run(self, load: LoadJob) -> LoadResult:
        """Runs a load on this thread."""
        self.num_begun += 1
        self._load = load
        try:
            return load.run()
        finally:
            self._load = None

    def begin(self, load: LoadJob, events: EventLoop) -> Task[LoadResult]:
        """Starts a load on the event loop."""
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
        """Waits for the load; `check` raises its failure. KeyboardInterrupt during the wait stops the
        load."""
        self._wait(None)

    def check(self) -> None:
        """Raises the failure of the last joined load, unless its task has raised it.

        Raises:
            PeerFailure: a rank is gone.
            BackgroundError: the load failed for another reason, which is the cause.
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
        """Stops a running load as soon as possible; `check` does not raise its failure then.

        Args:
            reason: reason for the message, on this and other ranks.
        """
        load, task = self._load, self.task
        if load is None or task is None:
            return
        load.stop(reason)
        task.wait(_STOP_SECONDS)
        task.was_reported = True

    def close(self, timeout: float) -> None:
        """Waits for a running load, and stops it after a timeout.

        Args:
            timeout: timeout in seconds.

        Raises:
            DeadlineError: the load was stopped, and tables contain a part of the snapshot.
            BackgroundError: as `check`.
        """
        task = self.task
        if task is not None and not self._wait(timeout):
            self.stop(ClosedError("its container was closed, or the program ended"))
            raise DeadlineError(
                f"{task.name} did not end within {timeout} s after its container was closed or the "
                "program ended: it was stopped, and tables that outlive the process "
                "contain a part of the rows. Load it again, and wait for it with result() before closing",
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
