"""Threads that write, seal and read files of a snapshot while others are used.

They are daemon threads. A `ThreadPoolExecutor` takes no more work once the interpreter has begun to end,
and that is when a save that nobody waited for is finished. From then on some versions of Python start no
thread either: a save beside steps starts them before.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["DaemonThreads"]

_Result = TypeVar("_Result")


class DaemonThreads:
    """Runs calls on a few threads, in their order. The first call starts them, if `start` did not.

    Args:
        num_threads: how many calls run at once.
        name: of the threads, for debuggers.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._num_threads, self._name = num_threads, name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Starts the threads that do not run yet."""
        while len(self._threads) < self._num_threads:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def submit(self, call: Callable[[], _Result]) -> Future[_Result]:
        """Begins a call; `close` must not have been called. One thread at a time submits."""
        self.start()
        future: Future[_Result] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(run)
        return future

    def close(self) -> None:
        """Returns when all calls have ended. A second call does nothing."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._calls.put(None)
        for thread in threads:
            thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
