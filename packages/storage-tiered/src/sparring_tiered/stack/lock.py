"""A reader-writer lock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["ReaderWriterLock"]


class ReaderWriterLock:
    """Allows concurrent readers or one writer. A waiting writer has priority over new readers.

    The lock is not reentrant: a thread that has acquired it in either mode must not acquire it again.
    """

    def __init__(self) -> None:
        # Readers use the plain lock, because they rarely wait or wake a writer.
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._num_readers = 0
        self._num_waiting = 0
        self._is_writing = False

    def begin_reading(self) -> None:
        """Waits until no thread writes. A call of `end_reading`, on any thread, must follow."""
        with self._mutex:
            while self._is_writing or self._num_waiting:
                self._changed.wait()
            self._num_readers += 1

    def end_reading(self) -> None:
        with self._mutex:
            self._num_readers -= 1
            if not self._num_readers and self._num_waiting:
                self._changed.notify_all()

    def begin_writing(self) -> None:
        """Waits until no thread reads or writes. A call of `end_writing`, on any thread, must follow."""
        with self._changed:
            self._num_waiting += 1
            try:
                while self._is_writing or self._num_readers:
                    self._changed.wait()
            finally:
                self._num_waiting -= 1
            self._is_writing = True

    def end_writing(self) -> None:
        with self._changed:
            self._is_writing = False
            self._changed.notify_all()

    def reading(self) -> AbstractContextManager[None]:
        return _Reading(self)

    @contextmanager
    def writing(self) -> Iterator[None]:
        self.begin_writing()
        try:
            yield
        finally:
            self.end_writing()


class _Reading(AbstractContextManager[None]):
    # Finds are short, and this takes half as long as a `contextmanager`.
    def __init__(self, lock: ReaderWriterLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.begin_reading()

    def __exit__(self, *_: object) -> None:
        self._lock.end_reading()
