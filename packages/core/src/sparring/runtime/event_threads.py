"""The threads of an `EventLoop`: one that runs asyncio, and a few for callables that block.

They are daemon threads, started together: none needs to be started while the interpreter ends,
which recent versions of Python refuse.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["EventThreads"]

STOP_SECONDS = 5.0
"""How long `stop` waits for coroutines that were cancelled."""


class EventThreads:
    """Runs coroutines and callables until `stop`.

    Args:
        num_threads: threads for callables that block.
        name: of the threads, for debuggers.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._loop_thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._call_threads = [
            threading.Thread(target=self._run_calls, name=f"{name}-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._all_threads():
            thread.start()

    def run_coroutine(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs it on the loop. It must not raise."""
        self._loop.call_soon_threadsafe(self._begin, coroutine)

    def run_call(self, call: Callable[[], None]) -> None:
        """Runs it on a thread that may block. It must not raise."""
        self._calls.put(call)

    def is_current(self) -> bool:
        """Whether the calling thread is one of these."""
        return threading.current_thread() in self._all_threads()

    def stop(self) -> None:
        """Cancels the coroutines that are left, and ends the threads that are not in a call."""
        for _ in self._call_threads:
            self._calls.put(None)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop_thread.join(STOP_SECONDS)

    def _all_threads(self) -> list[threading.Thread]:
        return [self._loop_thread, *self._call_threads]

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        # The loop itself keeps only a weak reference.
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _run_loop(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _run_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
