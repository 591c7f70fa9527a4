"""Calls that run one after another in the background of an exchange."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sparring.runtime import pool as execution

__all__ = ["InlineExecutor", "Job", "SerialExecutor"]


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

    def __init__(self, threads: ThreadPoolExecutor | None) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._is_running = False
        self._ended = threading.Event()

    def submit(self, call: Callable[[], None]) -> Job:
        """Begins a call as soon as those before it have ended."""
        job = Job(call)
        with self._lock:
            self._waiting.append(job)
            if self._is_running:
                return job
            self._is_running = True
        if self._threads is None:
            execution.submit(self._drain)
        else:
            self._threads.submit(self._drain)
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

    def __init__(self) -> None:
        super().__init__(None)

    def submit(self, call: Callable[[], None]) -> Job:
        job = Job(call)
        job.run()
        return job
