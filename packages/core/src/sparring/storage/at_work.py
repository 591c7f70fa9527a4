"""Storages that are not closed beneath work that goes on in them."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from sparring.closable import call_each
from sparring.forking import Forkable
from sparring.storage.contract import Storage

__all__ = ["StoragesAtWork"]


class StoragesAtWork(Forkable):
    """Knows in which storages a flush or a load goes on beside the thread that drives steps.

    Any thread may call any method. One piece of work goes on at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begin_anew()

    def begin_anew(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._working: list[Storage] = []
        self._closing: list[Storage] = []

    def begin(self, storages: Iterable[Storage]) -> None:
        """Work begins in these, beside those in which it has begun. `end` must follow."""
        with self._lock:
            self._working.extend(storages)

    def end(self) -> None:
        """Work has ended in all of them: those that somebody wanted closed are closed, whichever of
        them raises. The first error is raised, and the others are logged."""
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
