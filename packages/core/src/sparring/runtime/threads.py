"""Threads of core: all of them are made here, but for those of the execution pool, metrics and tests.

They are daemon threads, so that background work may go on while the interpreter ends. From then on some
versions of Python start no thread: work that may end so late starts its threads before.

The end of a program stops what it left open, in this order:

    1. prefetches and loads in the background, which use the collective (`at_exit`)
    2. collectives
    3. event loops: saves, write-back and flushes are drained
    4. the execution pool

A forked child has none of the threads, and stops nothing (`ProcessGuard`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TypeVar, cast

from sparring.runtime import pool

__all__ = ["InlineExecutor", "Job", "SerialExecutor", "Threads", "read_ahead", "start_thread"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def start_thread(call: Callable[[], object], name: str) -> threading.Thread:
    """Runs a call on a daemon thread of its own; `name` is for debuggers."""
    thread = threading.Thread(target=call, name=name, daemon=True)
    thread.start()
    return thread


class Threads:
    """Runs calls on a few threads, in their order. The first call starts them, if `start` did not.

    Args:
        name: of the threads, for debuggers.
        num_threads: how many calls run at once.
    """

    def __init__(self, name: str, num_threads: int = 1) -> None:
        self._name, self._num_threads = name, num_threads
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Starts the threads that do not run yet."""
        while len(self._threads) < self._num_threads:
            name = f"{self._name}-{len(self._threads)}"
            self._threads.append(start_thread(partial(_run_calls, self._calls), name))

    def submit(self, call: Callable[[], _Result]) -> Future[_Result]:
        """Begins a call, as `run`, that may raise."""
        future: Future[_Result] = Future()

        def run() -> None:
            result, error = pool.capture_outcome(call)
            if error is None:
                future.set_result(cast("_Result", result))
            else:
                future.set_exception(error)

        self.run(run)
        return future

    def run(self, call: Callable[[], object]) -> None:
        """Begins a call that does not raise. One thread at a time begins calls."""
        self._calls.put(call)  # first: a thread that starts begins it while this one goes on
        try:
            self.start()
        except RuntimeError:
            if not self._threads:
                self._calls = queue.SimpleQueue()  # it is refused, and must not run later
                raise

    def is_current(self) -> bool:
        """Whether the calling thread is one of these."""
        return threading.current_thread() in self._threads

    def close(self, timeout: float | None = None) -> None:
        """Ends each thread after its last call, and waits for it so many seconds; None: without limit."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._calls.put(None)
        for thread in threads if timeout != 0 else ():
            thread.join(timeout)

    def __del__(self) -> None:
        self.close(timeout=0)


def _run_calls(calls: queue.SimpleQueue[Callable[[], object] | None]) -> None:
    # Without the `Threads`, which may be dropped, and ends this thread then.
    while (call := calls.get()) is not None:
        call()
        del call


class Job:
    """A call and its result."""

    __slots__ = ("begin_ns", "call", "end_ns", "error", "is_done", "thread_id")

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.is_done = False
        self.error: BaseException | None = None
        self.begin_ns = self.end_ns = self.thread_id = 0

    def run(self) -> None:
        self.begin_ns = time.perf_counter_ns()
        self.thread_id = threading.get_ident()
        try:
            self.call()
        except BaseException as error:
            self.error = error
        self.end_ns = time.perf_counter_ns()
        self.is_done = True


class SerialExecutor:
    """Runs jobs in the order of submission, one at a time.

    Args:
        threads: run the jobs; None means the execution pool, which is for calls that compute and
            never wait: native storages and kernels. A call that may wait, as of a storage written
            in Python, needs a thread of its own.
    """

    def __init__(self, threads: Threads | None = None) -> None:
        self._submit: Callable[[Callable[[], None]], object]
        self._submit = pool.submit if threads is None else threads.run
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._is_running = False
        self._ended = threading.Event()

    def submit(self, call: Callable[[], None]) -> Job:
        """Begins a call as soon as those before it have ended.

        Raises:
            ClosedError, RuntimeError: the interpreter is ending, and no thread is left to run it.
        """
        job = Job(call)
        with self._lock:
            self._waiting.append(job)
            if self._is_running:
                return job
            self._is_running = True
        try:
            self._submit(self._drain)
        except BaseException:
            with self._lock:
                self._waiting.clear()
                self._is_running = False
            raise
        return job

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits to run."""
        return not self._is_running

    def pause(self, seconds: float) -> None:
        """Returns when a job has ended since the last call, at the latest after `seconds`."""
        self._ended.wait(seconds)
        self._ended.clear()

    def finish(self) -> None:
        """Drops jobs that have not begun, and waits for the running one: it may write to our memory."""
        with self._lock:
            self._waiting.clear()
        while self._is_running:
            self.pause(0.01)

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    self._ended.set()
                    return
                job = self._waiting.popleft()
            job.run()
            self._ended.set()


class InlineExecutor(SerialExecutor):
    """Runs each job in `submit`: for jobs that take less time than waking a thread."""

    def submit(self, call: Callable[[], None]) -> Job:
        job = Job(call)
        job.run()
        return job


def read_ahead(items: Generator[_Item, None, None]) -> Iterator[_Item]:
    """Yields the same items; each is made on a thread while the one before it is in use.

    Args:
        items: advanced by this alone, on that thread, and closed where this ends.
    """
    thread = Threads("sparring-snapshot-read")
    try:
        thread.start()
    except RuntimeError:  # the interpreter is ending, which a load may outlast
        yield from items
        return
    try:
        coming = thread.submit(partial(_take_next, items))
        while taken := coming.result():
            coming = thread.submit(partial(_take_next, items))
            # A buffer that is held here cannot be read into.
            yield taken.pop()
    finally:
        thread.close()
        items.close()


def _take_next(items: Iterator[_Item]) -> list[_Item]:
    """The next item; nothing at the end, because a future cannot hold a StopIteration."""
    for item in items:
        return [item]
    return []
