"""Background threads that write, seal and read files of a snapshot.

They are daemon threads. A `ThreadPoolExecutor` takes no more work once the interpreter has begun to end,
and that is when an unawaited save finishes. From then on some versions of Python start no thread either:
a save in the background starts them before.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

__all__ = ["DaemonThreads", "read_ahead"]

_Item = TypeVar("_Item")
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


def read_ahead(items: Generator[_Item, None, None]) -> Iterator[_Item]:
    """Yields the same items; each is made on a thread while the one before it is in use.

    Args:
        items: advanced by this alone, on that thread, and closed where this ends.
    """
    thread = _reading_thread()
    if thread is None:
        yield from items
        return
    try:
        coming = thread.submit(partial(_taken, items))
        while taken := coming.result():
            coming = thread.submit(partial(_taken, items))
            # A buffer that is held here cannot be read into.
            yield taken.pop()
    finally:
        thread.close()
        items.close()


def _taken(items: Iterator[_Item]) -> list[_Item]:
    """The next item; nothing at the end, because a future cannot hold a StopIteration."""
    for item in items:
        return [item]
    return []


def _reading_thread() -> DaemonThreads | None:
    """A thread; None where the interpreter is ending, which a load may outlast, and starts none."""
    made = DaemonThreads(1, "sparring-snapshot-read")
    try:
        made.start()
    except RuntimeError:
        return None
    return made
