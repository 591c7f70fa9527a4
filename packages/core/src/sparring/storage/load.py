"""Loads of a snapshot into a storage, and closes that wait for work in a storage.

    begin_load ──► restore, chunk by chunk ──► end_load
        note "load" is durable                    rows are durable, then the note goes

Should the process die meanwhile, `interrupted_load` names the source when the storage is opened
again. Notes last as long as the storage is open, or as long as its rows where
`Capabilities.notes` is set.
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
    """Removes all rows, for those of `source` to come; `end_load` must follow the last one.

    Args:
        storage: to load into.
        source: for messages, such as the snapshot's URL.
    """
    storage._check_open()
    arguments.check_note(storage.table.name, LOAD_NOTE, source)
    storage._clear_for(source)


def restore(
    storage: Storage, keys: npt.ArrayLike, rows: npt.ArrayLike, scores: npt.ArrayLike
) -> EvictedRows:
    """Upserts rows of a snapshot with the scores that a scan gave.

    A storage with a policy of its own goes on as if it had never stopped, where its backend
    offers that (`memory` and `hkv` do); elsewhere its scores start again.

    Args:
        storage: to load into.
        keys: ``(n,)`` unique int64.
        rows: ``(n, width)`` of the table's dtype.
        scores: ``(n,)`` uint64, whatever `Capabilities.scores` is.

    Raises:
        InvalidArgumentError, CapacityError, ClosedError: as `Storage.upsert`.
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
    """Ends a load: returns when its rows are as durable as they can be."""
    storage.flush()
    write_note(storage, LOAD_NOTE, None)


class BusyStorages:
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
