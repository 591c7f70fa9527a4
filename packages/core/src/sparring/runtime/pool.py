"""The execution pool in Python: its size, and calls that run on its threads.

There is one pool per process. Native storages and kernels parallelize their loops on it; `submit` runs
a complete call concurrently, for example the `find` of the next hop while the rows of this hop are
sent. Python code of a call needs the GIL, so calls only run in parallel while they execute code that
releases it, such as native storages and kernels.

A call should compute, not wait, because it occupies one of the pool's threads. Calls that wait for a
disk or a network should use `sparring.runtime.events`.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import operator
import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Generic, ParamSpec, SupportsIndex, TypeVar, cast

from sparring import _native
from sparring.errors import ClosedError, DeadlineError, InvalidArgumentError
from sparring.runtime.lifecycle import check_process

__all__ = ["EXIT_SECONDS", "PoolTask", "Task", "configure_pool", "num_threads", "submit"]

P = ParamSpec("P")
T = TypeVar("T")

EXIT_SECONDS = 5.0
"""Time that the interpreter's exit waits for running calls."""

_log = logging.getLogger(__name__)


def configure_pool(threads: int | None = None, *, sharing: int = 1) -> None:
    """Sets the number of threads that may compute at once, including calling threads.

    It has no effect in a forked child, which has no pool threads and computes on its own thread (see
    ``docs/explanation/execution.md``).

    Args:
        threads: 1 to 1,024. None or 0: the number of usable cores. This is the smallest of the
            affinity mask of the process, its CPU quota, and the environment variable
            ``OMP_NUM_THREADS`` if it is set.
        sharing: number of processes that share these cores; each uses its share, but at least one
            core. Ignored if `threads` is a number.

    Raises:
        InvalidArgumentError: `threads` is invalid, or the pool has work and cannot change its size.
    """
    wanted = _check_threads(threads)
    if not wanted and sharing > 1:
        wanted = min(max(1, _native.usable_cores() // sharing), _native.default_threads())
    try:
        _native.pool_configure(wanted)
    except _native.PoolBusyError as error:
        raise InvalidArgumentError(str(error), threads=threads) from None


def num_threads() -> int:
    """Returns the number of threads that may compute at once."""
    return int(_native.pool_num_threads())


def capture_outcome(call: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Calls a function, and returns its result and the exception that it raised; one is None."""
    try:
        return call(), None
    except BaseException as error:
        return None, error


class Task(Generic[T]):
    """Work that runs, or will run, on another thread. Awaitable from asyncio."""

    __slots__ = ("__weakref__", "_future", "name", "process", "was_reported")

    def __init__(self, name: str) -> None:
        self.name = name
        """Name of the work in error messages."""
        self.was_reported = False
        """Whether `result` has raised the error of the work."""
        self._future: Future[T] = Future()
        self.process = os.getpid()
        """The process that started the work. The task ends only in this process."""

    def result(self, timeout: float | None = None) -> T:
        """Waits for the work to end, and returns its result or raises its error.

        Args:
            timeout: seconds to wait; None: no limit.

        Raises:
            DeadlineError: the work has not ended in time. It continues, and `result` may be called
                again.
            ClosedError: the work was started before this process was forked, and had not ended then.
            concurrent.futures.CancelledError: the work was cancelled.
        """
        future = self._awaited()
        try:
            return future.result(timeout)
        except (TimeoutError, FutureTimeoutError):  # two classes in Python 3.10
            if future.done():  # the work raised TimeoutError, or has just ended
                return self._outcome()
        except Exception:
            self.was_reported = True
            raise
        raise DeadlineError(
            f"{self.name} has not ended within {timeout} s; pass a longer timeout, or find out why it "
            "is slow",
            name=self.name,
            timeout=timeout,
        )

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the work to end, and returns whether it has. An error of the work is not raised.

        Args:
            timeout: seconds to wait; None: no limit.
        """
        try:
            self._awaited().exception(timeout)
        except (TimeoutError, FutureTimeoutError):
            return self._future.done()
        except CancelledError:
            pass
        return True

    def failure(self) -> BaseException | None:
        """Returns the error of work that has ended; None if it succeeded or was cancelled."""
        return None if self.cancelled() else self._future.exception(0)

    def _awaited(self) -> Future[T]:
        """Returns the future; raises in a forked child, which would wait for it forever."""
        if os.getpid() != self.process and not self._future.done():
            check_process(self.process, self.name)
        return self._future

    def _outcome(self) -> T:
        try:
            return self._future.result(0)
        except Exception:
            self.was_reported = True
            raise

    def done(self) -> bool:
        """Whether the work has ended with a result, an error or a cancellation."""
        return self._future.done()

    def cancel(self) -> bool:
        """Prevents the work from starting. Returns False if it has already started."""
        return self._future.cancel()

    def cancelled(self) -> bool:
        """Whether `cancel` succeeded."""
        return self._future.cancelled()

    def on_cancel(self, call: Callable[[], None]) -> None:
        """Registers a function that is called if `cancel` succeeds, on its thread.

        Args:
            call: function without arguments. It must not wait.
        """

        def end(future: Future[T]) -> None:
            if future.cancelled():
                call()

        self._future.add_done_callback(end)

    def claim(self) -> bool:
        """Marks the work as started. Returns whether to run it: False if it was cancelled."""
        return self._future.set_running_or_notify_cancel()

    def finish(self, result: T | None, error: BaseException | None) -> None:
        """Ends the work, after `claim`.

        Args:
            result: result of the work; ignored if `error` is given.
            error: exception that the work raised; None if it succeeded.
        """
        if error is None:
            self._future.set_result(cast("T", result))
        else:
            self._future.set_exception(error)

    def __await__(self) -> Generator[Any, None, T]:
        try:
            return (yield from asyncio.wrap_future(self._awaited()).__await__())
        except Exception:
            self.was_reported = True
            raise

    def __repr__(self) -> str:
        return f"<Task {self.name!r} {'done' if self.done() else 'not done'}>"


class PoolTask(Task[T]):
    """A call on a thread of the pool.

    If `result` is called on a pool thread and the call has not started, it runs on this thread, without
    regard to `timeout`. Therefore calls may wait for other calls without exhausting the threads.
    """

    __slots__ = ("_call", "_is_taken")

    def __init__(self, call: Callable[[], T], name: str) -> None:
        super().__init__(name)
        self._call: Callable[[], T] | None = call
        self._is_taken = threading.Lock()  # locked for good by the thread that runs the call

    def result(self, timeout: float | None = None) -> T:
        if _native.is_pool_thread():
            self.run()
        return super().result(timeout)

    def run(self) -> None:
        """Runs the call on this thread, unless it has started or was cancelled."""
        if not self._is_taken.acquire(blocking=False):
            return
        call, self._call = self._call, None  # so that its arguments are released when it ends
        if call is not None and self.claim():
            self.finish(*capture_outcome(call))


def submit(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> PoolTask[T]:
    """Runs ``function(*args, **kwargs)`` on a thread of the pool, as soon as one is free.

    The order in which calls start is not defined.

    Raises:
        ClosedError: the interpreter is ending.
    """
    name = getattr(function, "__qualname__", None) or repr(function)
    task = PoolTask(functools.partial(function, *args, **kwargs), name)
    calls = _get_calls(task.process)
    calls.add(task)
    try:
        _native.pool_submit(functools.partial(calls.run, task))
    except BaseException:
        calls.discard(task)
        raise
    return task


class _Calls:
    """Calls that have been submitted and have not ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: set[PoolTask[Any]] = set()
        self._is_exiting = False

    def add(self, task: PoolTask[Any]) -> None:
        with self._lock:
            if self._is_exiting:
                raise ClosedError(
                    f"{task.name} was submitted while the interpreter is ending, but the pool no longer "
                    "accepts calls; submit it earlier, or call it directly",
                    name=task.name,
                )
            self._tasks.add(task)

    def discard(self, task: PoolTask[Any]) -> None:
        with self._lock:
            self._tasks.discard(task)

    def run(self, task: PoolTask[Any]) -> None:
        try:
            task.run()
        finally:
            self.discard(task)

    def end(self) -> None:
        """Cancels calls that have not started, and waits for the others, at most `EXIT_SECONDS`."""
        with self._lock:
            self._is_exiting = True
            tasks = list(self._tasks)
        running = [task for task in tasks if not task.cancel()]
        late = wait([task._future for task in running], EXIT_SECONDS).not_done
        if late:
            names = ", ".join(sorted(task.name for task in running if not task.done()))
            _log.warning("the interpreter ends before these calls have ended: %s", names)


_calls: dict[int, _Calls] = {}
"""Calls by process id. A forked child has separate calls, and must not end the calls of its parent."""


def _get_calls(process: int) -> _Calls:
    return _calls.get(process) or _calls.setdefault(process, _Calls())


atexit.register(lambda: _get_calls(os.getpid()).end())


def _check_threads(threads: object) -> int:
    most: int = _native.POOL_MAX_THREADS
    if threads is None:
        return 0
    if isinstance(threads, SupportsIndex) and not isinstance(threads, bool):
        number = operator.index(threads)
        if 0 <= number <= most:
            return number
    raise InvalidArgumentError(
        f"the number of threads of the pool must be 1 to {most}, or None for the number of usable "
        f"cores, found {threads!r}",
        threads=threads,
    )
