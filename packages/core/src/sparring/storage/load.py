"""Loads a snapshot into a storage, and delays closing storages that are in use.

    begin_load ──► restore, chunk by chunk ──► end_load
        note "load" is durable                    rows are durable, then the note is removed

If the process dies during a load, `interrupted_load` returns the source when the storage is opened
again. Notes are kept as long as the rows if `Capabilities.notes` is set, otherwise as long as the
storage is open.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy.typing as npt

from sparring.contracts.storage import results as arguments
from sparring.contracts.storage.optional import LOAD_NOTE, SupportsRestore, watched
from sparring.contracts.storage.results import EvictedRows
from sparring.contracts.storage.storage import Storage, write_note
from sparring.runtime.lifecycle import call_each

__all__ = ["BusyStorages", "begin_load", "end_load", "restore"]


def begin_load(storage: Storage, source: str) -> None:
    """Begins a load: removes all rows. Call `restore` for the rows of `source`, and `end_load` at the
    end.

    Args:
        storage: Storage to load into.
        source: Description of the source for messages, such as the snapshot's URL.
    """
    storage._check_open()
    arguments.check_note(storage.table.name, LOAD_NOTE, source)
    storage._clear_for(source)


def restore(
    storage: Storage, keys: npt.ArrayLike, rows: npt.ArrayLike, scores: npt.ArrayLike
) -> EvictedRows:
    """Upserts rows of a snapshot with the scores that a scan returned.

    If the backend supports it, as `memory` and `hkv` do, the storage's policy resumes with these scores.
    Other storages with a policy assign new scores.

    Args:
        storage: Storage to load into.
        keys: ``(n,)`` unique int64.
        rows: ``(n, width)`` in the table's dtype.
        scores: ``(n,)`` uint64, for any value of `Capabilities.scores`.

    Returns:
        The rows that were evicted.

    Raises:
        InvalidArgumentError, CapacityError, ClosedError: Under the same conditions as `Storage.upsert`.
    """
    storage._check_open()
    name = storage.table.name
    checked = arguments.check_keys(keys, name, unique=storage.validate)
    checked_rows = arguments.check_rows(rows, len(checked), storage.table)
    checked_scores = arguments.check_scores(scores, len(checked), name)
    if not len(checked):
        return storage._nothing_evicted()
    with watched(storage.watcher, checked) as write:
        if isinstance(storage, SupportsRestore):
            evicted = storage._restore_impl(checked, checked_rows, checked_scores)
        else:
            takes_scores = storage.capabilities.scores == "given"
            evicted = storage.upsert_from(
                checked, checked_rows, checked_scores if takes_scores else None
            )
        write.note_evicted(evicted)
    return evicted


def end_load(storage: Storage) -> None:
    """Ends a load: makes its rows as durable as the storage supports, and removes the note.

    Args:
        storage: the storage into which the rows were loaded.
    """
    storage.flush()
    write_note(storage, LOAD_NOTE, None)


class BusyStorages:
    """The storages that a background flush or load is using.

    Any thread may call any method. Only one flush or load may run at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the two attributes below
        self._working: list[Storage] = []
        self._closing: list[Storage] = []

    def begin(self, storages: Iterable[Storage]) -> None:
        """Adds storages to those in use. A call of `end` must follow."""
        with self._lock:
            self._working.extend(storages)

    def end(self) -> None:
        """Removes all storages from those in use, and closes those for which `close` was called.

        Raises the first error, and logs the others.
        """
        with self._lock:
            waiting, self._closing, self._working = self._closing, [], []
        call_each([storage.close for storage in waiting])

    def close(self, storage: Storage) -> None:
        """Closes a storage now, or in `end` if it is in use."""
        with self._lock:
            if any(each is storage for each in self._working):
                self._closing.append(storage)
                return
        storage.close()
