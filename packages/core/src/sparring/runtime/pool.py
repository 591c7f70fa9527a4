"""The execution pool in Python: its size, and calls that run on its threads.

One pool serves the whole process. Native storages and kernels spread their loops over it by
themselves; `submit` is for running a whole call concurrently, such as the `find` of the next
hop while the rows of this one travel. A call takes the GIL on its thread, so calls run side by
side only in so far as what they call releases it: native storages and kernels do.

A call should compute, not wait: while it runs, it counts as one of the pool's threads. What waits
for a disk or a network belongs to `sparring.runtime.events`.
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
"""How long the interpreter's exit waits for calls that still run."""

_log = logging.getLogger(__name__)


def configure_pool(threads: int | None = None, *, sharing: int = 1) -> None:
    """Sets how many threads may compute at once, those of the framework that call us included.

    In a forked child that lost the pool's threads (see ``docs/explanation/execution.md``) this
    changes nothing: such a child computes on its own thread.

    Args:
        threads: 1 to 1,024. None or 0: the number of usable cores, which is the smaller of the
            affinity mask and the CPU quota of the process, but at most ``OMP_NUM_THREADS``, if that
            environment variable is set.
        sharing: processes that share these cores: each takes its part of them, but one at least.
            Does not matter where `threads` says a number.

    Raises:
        InvalidArgumentError: no such number; or the pool has work, and keeps its size.
    """
    wanted = _check_threads(threads)
    if not wanted and sharing > 1:
        wanted = min(max(1, _native.usable_cores() // sharing), _native.default_threads())
    try:
        _native.pool_configure(wanted)
    except _native.PoolBusyError as error:
        raise InvalidArgumentError(str(error), threads=threads) from None


def num_threads() -> int:
    """How many threads may compute at once."""
    return int(_native.pool_num_threads())


def capture_outcome(call: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Calls it; returns its result, and what it raised."""
    try:
        return call(), None
    except BaseException as error:
        return None, error


class Task(Generic[T]):
    """Work that runs, or will run, on another thread. Awaitable from asyncio."""

    __slots__ = ("__weakref__", "_future", "name", "process", "was_reported")

    def __init__(self, name: str) -> None:
        self.name = name
        """Name of the work in errors."""
        self.was_reported = False
        """Whether `result` has raised its failure to somebody."""
        self._future: Future[T] = Future()
        self.process = os.getpid()
        """The process that began it, and in which alone it ends."""

    def result(self, timeout: float | None = None) -> T:
        """Waits for the work to end; returns what it returned or raises what it raised.

        Args:
            timeout: seconds; None waits as long as it takes.

        Raises:
            DeadlineError: it has not ended in time; it goes on, and may be asked again.
            ClosedError: it was begun before this process was forked, and had not ended then.
            concurrent.futures.CancelledError: it was cancelled.
        """
        future = self._awaited()
        try:
            return future.result(timeout)
        except (TimeoutError, FutureTimeoutError):  # two classes in Python 3.10
            if future.done():  # the work's own TimeoutError, or it ended this very moment
                return self._outcome()
        except Exception:
            self.was_reported = True
            raise
        raise DeadlineError(
            f"{self.name} was given {timeout} s and has not ended; allow more, or find out what "
            "it waits for",
            name=self.name,
            timeout=timeout,
        )

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the work to end; says whether it has. Its failure is not raised, nor heard.

        Args:
            timeout: seconds; None waits as long as it takes.
        """
        try:
            self._awaited().exception(timeout)
        except (TimeoutError, FutureTimeoutError):
            return self._future.done()
        except CancelledError:
            pass
        return True

    def failure(self) -> BaseException | None:
        """The error of work that has ended, to be passed on; None: there is none, or it was
        cancelled."""
        return None if self.cancelled() else self._future.exception(0)

    def _awaited(self) -> Future[T]:
        """The future, unless a forked child would wait for it for ever."""
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
        """Whether the work has ended, be it by a result, an error or a cancellation."""
        return self._future.done()

    def cancel(self) -> bool:
        """Keeps the work from starting. False if it has begun."""
        return self._future.cancel()

    def cancelled(self) -> bool:
        """Whether `cancel` came in time."""
        return self._future.cancelled()

    def on_cancel(self, call: Callable[[], None]) -> None:
        """`call` is called once `cancel` has come in time, by who cancels. It must not wait."""

        def end(future: Future[T]) -> None:
            if future.cancelled():
                call()

        self._future.add_done_callback(end)

    def claim(self) -> bool:
        """For who runs it: True, once, unless it was cancelled."""
        return self._future.set_running_or_notify_cancel()

    def finish(self, result: T | None, error: BaseException | None) -> None:
        """Ends it, after `claim`: with an error, or else the result."""
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

    On a thread of the pool, `result` runs a call that has not begun here and now, so that calls
    may wait for calls without running out of threads; `timeout` does not bound that.
    """

    __slots__ = ("_call", "_is_taken")

    def __init__(self, call: Callable[[], T], name: str) -> None:
        super().__init__(name)
        self._call: Callable[[], T] | None = call
        self._is_taken = threading.Lock()  # locked, and kept so, by the thread that runs the call

    def result(self, timeout: float | None = None) -> T:
        if _native.is_pool_thread():
            self.run()
        return super().result(timeout)

    def run(self) -> None:
        """Runs the call on this thread, unless it has begun or was cancelled."""
        if not self._is_taken.acquire(blocking=False):
            return
        call, self._call = self._call, None  # what it holds shall not outlive it
        if call is not None and self.claim():
            self.finish(*capture_outcome(call))


def submit(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> PoolTask[T]:
    """Runs ``function(*args, **kwargs)`` on a thread of the pool, as soon as one is free.

    Calls begin in no fixed order.

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
    """The calls that have been submitted and have not ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: set[PoolTask[Any]] = set()
        self._is_exiting = False

    def add(self, task: PoolTask[Any]) -> None:
        with self._lock:
            if self._is_exiting:
                raise ClosedError(
                    f"{task.name} was submitted while the interpreter is ending, when the pool "
                    "takes no more calls; submit it earlier, or call it",
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
        """At exit: cancels what has not begun, and waits for the rest, within bounds."""
        with self._lock:
            self._is_exiting = True
            tasks = list(self._tasks)
        running = [task for task in tasks if not task.cancel()]
        late = wait([task._future for task in running], EXIT_SECONDS).not_done
        if late:
            names = ", ".join(sorted(task.name for task in running if not task.done()))
            _log.warning("the interpreter ends before these calls: %s", names)


_calls: dict[int, _Calls] = {}
"""By process: a forked child has others, and those of its parent, as they were."""


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
        f"the pool can have 1 to {most} threads, or None for the number of usable cores; "
        f"{threads!r} was asked for",
        threads=threads,
    )
