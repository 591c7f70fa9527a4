"""Threads of core. All threads are created here, except those of the execution pool, metrics and tests.

They are daemon threads, so background work may continue while the interpreter ends. Some versions of
Python cannot start threads then, so work that may end late starts its threads in advance.

The exit of a program closes open parts in this order:

    1. background prefetches and loads, which use the collective (`at_exit`)
    2. collectives
    3. event loops: waits for saves, write-back and flushes
    4. the execution pool

A forked child has none of these threads, and closes nothing (`ProcessGuard`).
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
    """Runs a call on a new daemon thread; `name` is shown in debuggers."""
    thread = threading.Thread(target=call, name=name, daemon=True)
    thread.start()
    return thread


class Threads:
    """Runs calls on a few threads, in the order of submission.

    The threads start with `start`, or with the first call.

    Args:
        name: name of the threads, shown in debuggers.
        num_threads: maximum number of calls that run at once.
    """

    def __init__(self, name: str, num_threads: int = 1) -> None:
        self._name, self._num_threads = name, num_threads
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Starts the threads that are not running yet."""
        while len(self._threads) < self._num_threads:
            name = f"{self._name}-{len(self._threads)}"
            self._threads.append(start_thread(partial(_run_calls, self._calls), name))

    def submit(self, call: Callable[[], _Result]) -> Future[_Result]:
        """Submits a call that may raise, and returns its future."""
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
        """Submits a call that must not raise. Only one thread at a time may submit calls."""
        self._calls.put(call)  # before `start`, so that a new thread finds it
        try:
            self.start()
        except RuntimeError:
            if not self._threads:
                self._calls = queue.SimpleQueue()  # the call is rejected, and must not run later
                raise

    def is_current(self) -> bool:
        """Whether the calling thread is one of these."""
        return threading.current_thread() in self._threads

    def close(self, timeout: float | None = None) -> None:
        """Ends each thread after its last call.

        Args:
            timeout: seconds to wait for each thread; None sets no limit.
        """
        threads, self._threads = self._threads, []
        for _ in threads:
            self._calls.put(None)
        for thread in threads if timeout != 0 else ():
            thread.join(timeout)

    def __del__(self) -> None:
        self.close(timeout=0)


def _run_calls(calls: queue.SimpleQueue[Callable[[], object] | None]) -> None:
    # Has no reference to `Threads`, whose deletion ends this thread.
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
        threads: threads that run the jobs. None uses the execution pool, for calls that compute and never
            wait, such as native storages and kernels. Calls that may wait, for example in a storage
            written in Python, need separate threads.
    """

    def __init__(self, threads: Threads | None = None) -> None:
        self._submit: Callable[[Callable[[], None]], object]
        self._submit = pool.submit if threads is None else threads.run
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._is_running = False
        self._ended = threading.Event()

    def submit(self, call: Callable[[], None]) -> Job:
        """Runs a call when all earlier calls have ended, and returns its job.

        Raises:
            ClosedError, RuntimeError: the interpreter is ending, and no thread can run it.
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
        """Whether no job runs or waits."""
        return not self._is_running

    def pause(self, seconds: float) -> None:
        """Waits at most `seconds` until a job ends. A job that ended since the last call counts."""
        self._ended.wait(seconds)
        self._ended.clear()

    def finish(self) -> None:
        """Drops jobs that have not started, and waits for the running one, because it may still write
        to memory of the caller."""
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
    """Runs each job in `submit`, for jobs that are faster than waking a thread."""

    def submit(self, call: Callable[[], None]) -> Job:
        job = Job(call)
        job.run()
        return job


def read_ahead(items: Generator[_Item, None, None]) -> Iterator[_Item]:
    """Yields the items of a generator; each is produced on a thread while the previous one is in use.

    Args:
        items: the generator. It is advanced only by this function, on that thread, and closed at the
            end.
    """
    thread = Threads("sparring-snapshot-read")
    try:
        thread.start()
    except RuntimeError:  # the interpreter is ending while a load is still running
        yield from items
        return
    try:
        coming = thread.submit(partial(_take_next, items))
        while taken := coming.result():
            coming = thread.submit(partial(_take_next, items))
            # Popped, because a buffer with a reference here cannot be reused.
            yield taken.pop()
    finally:
        thread.close()
        items.close()


def _take_next(items: Iterator[_Item]) -> list[_Item]:
    """Returns a list of the next item. It is empty at the end, as a future cannot raise StopIteration."""
    for item in items:
        return [item]
    return []
