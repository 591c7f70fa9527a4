"""Storages that are closed only when work in them has ended."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from sparring.contracts.storage import Storage
from sparring.runtime.lifecycle import call_each

__all__ = ["StoragesAtWork"]


class StoragesAtWork:
    """The storages in which a background flush or load goes on.

    Any thread may call any method. One piece of work goes on at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._working: list[Storage] = []
        self._closing: list[Storage] = []

    def begin(self, storages: Iterable[Storage]) -> None:
        """Work begins in these, and goes on in those of earlier calls. `end` must follow."""
        with self._lock:
            self._working.extend(storages)

    def end(self) -> None:
        """Ends work in all of them, and closes those for which `close` was called. The first error is
        raised, and the others are logged."""
        with self._lock:
            waiting, self._closing, self._working = self._closing, [], []
        call_each([storage.close for storage in waiting])

    def close(self, storage: Storage) -> None:
        """Closes a storage, once work that still goes on in it has ended."""
        with self._lock:
            if any(each is storage for each in self._working):
                self._closing.append(storage)
                return
        storage.close()
