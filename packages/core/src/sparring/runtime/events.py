"""Background work that must not block a step: snapshots, write-back, refreshes, metrics.

An `EventLoop` has one thread with an asyncio loop, and a few threads for blocking callables. Its
capacity is limited: if work is submitted faster than it ends, `submit` waits. The first failure is kept
until the next `EventLoop.check`, which every step calls and which raises it.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any

from sparring.errors import ClosedError, DeadlineError, InvalidArgumentError, SparringError
from sparring.runtime.lifecycle import Closable, ProcessGuard

# Imported before the registration at exit below, because the pool must outlive the work that uses it.
from sparring.runtime.pool import Task, capture_outcome
from sparring.runtime.threads import Threads

__all__ = ["EXIT_SECONDS", "BackgroundError", "EventLoop"]

EXIT_SECONDS = 30.0
"""Minimum time that the interpreter's exit waits for an event loop that was not closed."""

_CANCEL_SECONDS = 5.0
"""Time that `close` waits for coroutines that it has cancelled."""

_log = logging.getLogger(__name__)


class BackgroundError(SparringError):
    """Background work failed: fix the cause, which is the error of the work.

    Attributes:
        name: name of the first work that failed.
        num_failed: number of failures since the last report.
    """


class EventLoop(Closable):
    """Runs background work with limited capacity, and reports failures.

    Threads are started on demand. Any thread may call any method. In a forked child, `close` does
    nothing and all other methods raise `ClosedError`.

    Args:
        capacity: maximum number of works that wait or run.
        num_threads: maximum number of blocking callables that run at once.
        deadline_seconds: default timeout of `submit`, `drain` and `close`.

    Raises:
        InvalidArgumentError: `capacity` or `num_threads` is below 1.

    Examples:
        >>> from sparring import EventLoop
        >>> with EventLoop() as events:
        ...     events.submit(lambda: 6 * 7, name="product").result()
        42
    """

    def __init__(
        self, *, capacity: int = 64, num_threads: int = 2, deadline_seconds: float = 60.0
    ) -> None:
        if capacity < 1 or num_threads < 1:
            found = f"capacity={capacity} and num_threads={num_threads}"
            raise InvalidArgumentError(
                f"event loop: capacity and num_threads must be at least 1, found {found}; raise them"
            )
        self.capacity = capacity
        self.num_threads = num_threads
        self.deadline_seconds = deadline_seconds
        self.num_failed = 0
        """Number of failures since the creation, whether reported or not."""
        self._process = ProcessGuard("this EventLoop")
        self._threads = Threads("sparring-events", num_threads)
        self._loop_thread = Threads("sparring-events-loop")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._when_awaited: list[Callable[[], None]] = []
        self._changed = threading.Condition()  # guards all fields below
        self._is_closed = False
        self._outstanding: dict[Task[Any], tuple[float, Future[Any] | None]] = {}
        self.first_failed: Task[Any] | None = None
        self._num_unreported = 0
        _event_loops.add(self)

    @property
    def num_outstanding(self) -> int:
        """Number of works that wait or run."""
        return len(self._outstanding)

    def submit(
        self,
        work: Callable[[], object] | Coroutine[Any, Any, object],
        *,
        name: str | None = None,
        timeout: float | None = None,
        report_failure: bool = True,
        closing_seconds: float = 0.0,
    ) -> Task[Any]:
        """Starts work: a coroutine on the loop, or a callable on a thread that may block.

        Waits while `capacity` works are outstanding. Background work that submits more work does not
        wait, because it might wait for itself.

        Args:
            work: a coroutine, or a coroutine function or callable without arguments.
            name: name of the work in error messages; by default the name of the function.
            timeout: seconds to wait for capacity; by default `deadline_seconds`.
            report_failure: whether `check` raises a failure; otherwise only the task reports it.
            closing_seconds: minimum time that `close` and the exit of the program wait for this work.

        Returns:
            The task of the work.

        Raises:
            DeadlineError: the capacity remained exhausted; for background work, it is exhausted now.
            ClosedError: the loop was closed.
            InvalidArgumentError: `work` is neither a coroutine nor callable.
        """
        if inspect.iscoroutinefunction(work):
            work = work()
        if not inspect.iscoroutine(work) and not callable(work):
            raise InvalidArgumentError(
                f"background work must be a coroutine or a callable, found {type(work).__name__}; pass a "
                "function without arguments"
            )
        task = Task[Any](name or getattr(work, "__qualname__", None) or repr(work))
        try:
            self._process.check()
            with self._changed:
                self._wait_for_capacity(task.name, self._seconds(timeout))
                loop = self._start()
                if not inspect.iscoroutine(work):
                    self._outstanding[task] = closing_seconds, None
                    self._threads.run(partial(self._run_call, task, report_failure, work))
                    return task
                task.claim()
                running = asyncio.run_coroutine_threadsafe(_guard(work), loop)
                # Stored, because asyncio only has a weak reference to the task of a coroutine.
                self._outstanding[task] = closing_seconds, running
                running.add_done_callback(
                    lambda ended: self._end(task, report_failure, partial(_result, work, ended))
                )
        except BaseException:
            if inspect.iscoroutine(work):
                work.close()
            raise
        return task

    def check(self) -> None:
        """Raises the first failure since the last check, if there is one.

        Raises:
            BackgroundError: work failed; the error has the name of the work, and its cause.
        """
        self._process.check()
        with self._changed:
            failed, self.first_failed = self.first_failed, None
            num_failed, self._num_unreported = self._num_unreported, 0
        if failed is None:
            return
        error = failed.failure()
        others = "" if num_failed == 1 else f"; {num_failed - 1} more failed after it, see the log"
        raise BackgroundError(
            f"background work {failed.name!r} failed: {type(error).__name__}: {error}{others}",
            name=failed.name,
            num_failed=num_failed,
        ) from error

    def on_await(self, call: Callable[[], None]) -> None:
        """Registers a function that is called when a caller starts to wait for all work.

        Background work that throttles itself can then stop doing so. The function must not wait.

        Args:
            call: function without arguments, called on the thread of the caller that waits.
        """
        self._when_awaited.append(call)

    def drain(self, timeout: float | None = None) -> None:
        """Waits until all work has ended. Failures are not raised; `check` raises them.

        Args:
            timeout: seconds to wait; by default `deadline_seconds`.

        Raises:
            DeadlineError: some work has not ended; it continues.
            InvalidArgumentError: called by background work, which would wait for itself.
        """
        self._process.check()
        self._reject_own_threads("drain")
        for call in self._when_awaited:
            call()
        seconds = self._seconds(timeout)
        with self._changed:
            if not self._changed.wait_for(lambda: not self._outstanding, seconds):
                names = ", ".join(sorted({task.name for task in self._outstanding}))
                raise DeadlineError(
                    f"background work has not ended within {seconds} s: {names}; pass a longer "
                    "timeout, or find out why it is slow",
                    timeout=seconds,
                    names=names,
                )

    def close(self, timeout: float | None = None) -> None:
        """Waits for outstanding work, and ends the threads. A second call does nothing.

        Args:
            timeout: seconds to wait for outstanding work; by default `deadline_seconds`. A larger
                `closing_seconds` of the work extends it.

        Raises:
            DeadlineError: some work did not end. Coroutines were cancelled; callables continue.
            BackgroundError: work failed and no `check` has raised it. The loop is closed.
        """
        if not self._process.is_own:
            return
        self._reject_own_threads("close")
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()  # wakes callers that wait for capacity
            given = [self._seconds(timeout), *(each for each, _ in self._outstanding.values())]
        try:
            self.drain(max(given))
        finally:
            self._stop()
        self.check()

    # -- waiting ------------------------------------------------------------

    def _seconds(self, timeout: float | None) -> float:
        return self.deadline_seconds if timeout is None else timeout

    def _is_own_thread(self) -> bool:
        return self._threads.is_current() or self._loop_thread.is_current()

    def _reject_own_threads(self, operation: str) -> None:
        if self._is_own_thread():
            raise InvalidArgumentError(
                f"{operation} was called by background work, which would wait for itself; call it "
                "from the thread that submits"
            )

    def _wait_for_capacity(self, name: str, seconds: float) -> None:
        """Waits until there is capacity for one more work. The caller has the lock."""
        if self._is_own_thread():
            seconds = 0.0
        has_room = self._changed.wait_for(
            lambda: self._is_closed or len(self._outstanding) < self.capacity, seconds
        )
        if self._is_closed:
            raise ClosedError(
                f"background work {name!r} was submitted to a closed event loop; submit it before "
                "close, or create a new EventLoop"
            )
        if not has_room:
            raise DeadlineError(
                f"background work {name!r} waited {seconds} s for capacity: {self.capacity} works are "
                "outstanding, which is the maximum; submit less often, or raise the capacity"
            )

    # -- threads --------------------------------------------------------------

    def _start(self) -> asyncio.AbstractEventLoop:
        """Starts all threads, because none can be started while the interpreter ends.

        The caller has the lock.
        """
        if self._loop is None:
            self._threads.start()
            started: Future[_Started] = Future()
            self._loop_thread.run(partial(_run_loop, started))
            self._loop, self._stopping = started.result()
        return self._loop

    def _stop(self) -> None:
        """Cancels coroutines and work that has not started; ends threads that run no call."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._threads.close(timeout=0)
        self._loop_thread.close(_CANCEL_SECONDS)
        for task in list(self._outstanding):
            task.cancel()

    def _run_call(self, task: Task[Any], report_failure: bool, work: Callable[[], object]) -> None:
        if task.claim():
            self._end(task, report_failure, work)
        else:
            self._leave(task)

    def _end(self, task: Task[Any], report_failure: bool, work: Callable[[], object]) -> None:
        """Ends a task with the result or error of `work`."""
        result, error = capture_outcome(work)
        if inspect.iscoroutine(result):
            result.close()
            error = InvalidArgumentError(
                f"background work {task.name!r} returned a coroutine, which is never awaited; submit "
                "the coroutine, or a coroutine function"
            )
        if error is not None:
            # Without `report_failure`, the owner of the task handles the failure.
            level = logging.ERROR if report_failure else logging.INFO
            # Errors of sparring are complete messages; for others the traceback is needed.
            trace = None if isinstance(error, SparringError) else error
            text = f"{type(error).__name__}: {error}"
            _log.log(level, "background work %r failed: %s", task.name, text, exc_info=trace)
        with self._changed:
            self.num_failed += error is not None
            if error is not None and report_failure:
                self.first_failed = self.first_failed or task
                self._num_unreported += 1
            task.finish(result, error)
            self._leave(task)

    def _leave(self, task: Task[Any]) -> None:
        with self._changed:
            self._outstanding.pop(task, None)
            self._changed.notify_all()


_Started = tuple[asyncio.AbstractEventLoop, asyncio.Event]


def _run_loop(started: Future[_Started]) -> None:
    """Runs the loop on its thread, without a reference to the `EventLoop`, which may be deleted."""
    serving = _serve(started)
    try:
        asyncio.run(serving)
    except BaseException as error:
        serving.close()
        if started.done():
            raise
        started.set_exception(error)  # for example, no file descriptors are left


async def _serve(started: Future[_Started]) -> None:
    stopping = asyncio.Event()
    started.set_result((asyncio.get_running_loop(), stopping))
    await stopping.wait()


async def _guard(work: Coroutine[Any, Any, object]) -> tuple[object, BaseException | None]:
    """Returns the result and error of a coroutine. asyncio would end its loop on SystemExit."""
    try:
        return await work, None
    except (KeyboardInterrupt, SystemExit) as error:
        return None, error


def _result(work: Coroutine[Any, Any, object], ended: Future[Any]) -> object:
    work.close()  # needed if it was cancelled before it started
    result, error = ended.result()
    if error is not None:
        raise error
    return result


_event_loops: weakref.WeakSet[EventLoop] = weakref.WeakSet()


def _close_at_exit() -> None:
    for event_loop in list(_event_loops):
        try:
            event_loop.close(EXIT_SECONDS)
        except SparringError as error:
            _log.error("at exit: %s", error)


atexit.register(_close_at_exit)
