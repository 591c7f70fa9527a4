"""Loads of a snapshot into a storage, and the notes by which a load that was cut short is found.

    begin_load ──► restore, chunk by chunk ──► end_load
        note "load" is durable                    rows are durable, then the note goes

Should the process die meanwhile, `interrupted_load` names the source when the storage is opened
again. Notes last as long as the storage is open, or as long as its rows where
`Capabilities.notes` is set.
"""

from __future__ import annotations

import numpy.typing as npt

from sparring.contracts import storage_arguments as arguments
from sparring.contracts.results import Evicted
from sparring.contracts.storage import Storage
from sparring.contracts.storage_optional import LOAD_NOTE, SupportsRestore, watched

__all__ = [
    "begin_load",
    "end_load",
    "interrupted_load",
    "read_note",
    "restore",
    "write_note",
]


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
) -> Evicted:
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


def interrupted_load(storage: Storage) -> str | None:
    """The source of a load that has not ended: rows may be missing. None: there is none."""
    return read_note(storage, LOAD_NOTE)


def write_note(storage: Storage, name: str, text: str | None) -> None:
    """Keeps a short text about the rows; None removes it. `Storage.clear` keeps it.

    Where `Capabilities.notes` is set it outlives the process: it is durable before any
    write that follows, and is removed after all writes that went before.

    Args:
        storage: whose rows it is about.
        name: lowercase letters and ``_``. ``load`` and ``part`` are the engine's.
        text: up to 4,096 characters.

    Raises:
        InvalidArgumentError: `name` or `text` is not as it should be.
    """
    storage._check_open()
    arguments.check_note(storage.table.name, name, text)
    storage._write_note(name, text)


def read_note(storage: Storage, name: str) -> str | None:
    """The text that `write_note` keeps under `name`; None: there is none."""
    storage._check_open()
    arguments.check_note(storage.table.name, name, None)
    return storage._read_note(name)
