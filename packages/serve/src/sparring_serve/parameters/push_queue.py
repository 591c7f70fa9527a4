"""The thread that updates the tables of a shard, and its bounded queue."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from sparring_serve.status import Status, StatusError

__all__ = ["PushQueue"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    run: Callable[[], Any]
    num_bytes: int
    is_push: bool
    future: Future[Any] = field(default_factory=Future)


class PushQueue:
    """Executes work in the order of arrival on a separate thread.

    Args:
        max_pushes: Maximum number of waiting pushes.
        max_bytes: Maximum size of the waiting pushes.
    """

    def __init__(self, max_pushes: int, max_bytes: int) -> None:
        self._max_pushes, self._max_bytes = max_pushes, max_bytes
        self._changed = threading.Condition()
        self._waiting: deque[_Work] = deque()
        self.num_pushes = 0
        """Number of pushes that wait or are being applied."""
        self.num_bytes = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="sparring-parameters", daemon=True)
        self._thread.start()

    def push(
        self, run: Callable[[], Any], num_bytes: int, before: Callable[[], None] = lambda: None
    ) -> Future[Any]:
        """Adds a push.

        Args:
            run: Applies the push.
            num_bytes: Size of the push.
            before: Called when there is space for the push, before it is added.

        Raises:
            StatusError: RESOURCE_EXHAUSTED: the queue is full, and the push was not accepted.
        """
        with self._changed:
            self._check_open()
            waiting, held = self.num_pushes, self.num_bytes
            if waiting and (waiting >= self._max_pushes or held + num_bytes > self._max_bytes):
                raise StatusError(
                    Status.RESOURCE_EXHAUSTED,
                    f"a push of {num_bytes:,} bytes was rejected: {waiting:,} pushes of {held:,} "
                    f"bytes are waiting, and the maximum is {self._max_pushes:,} and "
                    f"{self._max_bytes:,}. Push again later with the same token",
                    reason="push_queue",
                )
            before()
            self.num_pushes += 1
            self.num_bytes += num_bytes
            return self._add(_Work(run, num_bytes, is_push=True))

    def call(self, run: Callable[[], Any]) -> Future[Any]:
        """Adds other work, which runs after all waiting pushes."""
        with self._changed:
            self._check_open()
            return self._add(_Work(run, 0, is_push=False))

    def close(self) -> None:
        """Completes all waiting work and ends the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StatusError(
                Status.UNAVAILABLE, "this server is draining; push again after its restart"
            )

    def _add(self, work: _Work) -> Future[Any]:
        self._waiting.append(work)
        self._changed.notify_all()
        return work.future

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                work = self._waiting.popleft()
            result, failure = None, None
            try:
                result = work.run()
            except Exception as error:
                if work.is_push:
                    _log.warning("a push was not applied: %s", error)
                failure = error
            with self._changed:
                self.num_pushes -= work.is_push
                self.num_bytes -= work.num_bytes
            if failure is None:
                work.future.set_result(result)
            else:
                work.future.set_exception(failure)
