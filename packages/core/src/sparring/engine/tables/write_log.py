"""`WriteLog`: notifies observers of each write to the rows of one table."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Protocol

from sparring import _native
from sparring.contracts.ranks.shard_map import KeyOwners
from sparring.contracts.storage.optional import UNWATCHED, Write
from sparring.contracts.storage.results import EvictedRows, Keys

__all__ = ["CHANGED_BYTES", "RowObserver", "WriteLog"]

CHANGED_BYTES = 64 << 20
"""Maximum memory of the set of changed keys of a table: 4 to 6 million keys. Beyond it the next
snapshot is a full one."""


class RowObserver(Protocol):
    """Observes the writes to the rows of one table, on the thread that writes. No method may raise."""

    def before_write(self, keys: Keys) -> None:
        """Called before the first row of `keys` changes. `after_write` always follows."""

    def after_write(self, keys: Keys, evicted: EvictedRows | None, *, is_erased: bool) -> None:
        """Called after the rows have changed.

        Args:
            keys: ``(n,)``, as in `before_write`.
            evicted: rows that were evicted to free capacity.
            is_erased: the write removed the rows of `keys`.
        """

    def rows_cleared(self, table: str) -> None:
        """Called before all rows are removed, or moved to another storage."""


class WriteLog:
    """Observers of one table's rows.

    Args:
        table: name of the table.
        owners: owners of the keys; None: this rank stores all rows of the table.
    """

    def __init__(self, table: str, owners: KeyOwners | None = None) -> None:
        self._table = table
        self.owners = owners
        self._observers: tuple[RowObserver, ...] = ()
        self.is_active = False
        """Whether writes are observed. This is no property, because each step reads it for each
        table."""
        self._changed: _ChangedKeys | None = None
        # A save removes its view on the thread of the save, while the trainer may add an observer.
        self._lock = threading.Lock()

    @property
    def changed(self) -> _native.KeySet | None:
        """Keys that were written, erased or evicted since a base; None if they are not tracked, were
        too many, or all rows were replaced."""
        return None if self._changed is None else self._changed.keys

    @changed.setter
    def changed(self, keys: _native.KeySet | None) -> None:
        if self._changed is not None:
            self.remove_observer(self._changed)
        self._changed = None if keys is None else _ChangedKeys(self, keys)
        if self._changed is not None:
            self.add_observer(self._changed)

    def add_observer(self, observer: RowObserver) -> None:
        """Notifies `observer` of each write that begins from now on."""
        with self._lock:
            self._observers = (*self._observers, observer)
            self.is_active = True

    def remove_observer(self, observer: RowObserver) -> None:
        """Stops notifying `observer`. Does nothing if it was not added."""
        with self._lock:
            self._observers = tuple(each for each in self._observers if each is not observer)
            self.is_active = bool(self._observers)

    def check_written(self, keys: Keys) -> None:
        """Rejects keys that another rank owns."""
        if self.owners is not None:
            self.owners.check_written(keys)

    def writing(self, keys: Keys) -> AbstractContextManager[Write]:
        """Returns the context of a write to the rows of `keys`."""
        observers = self._observers
        return _ObservedWrite(observers, keys) if observers else UNWATCHED

    def clearing(self) -> None:
        """Notifies all observers that all rows are about to be removed or moved to another storage."""
        for observer in self._observers:
            observer.rows_cleared(self._table)


class _ChangedKeys:
    """Tracks the keys that differ from a base, up to `CHANGED_BYTES`."""

    def __init__(self, log: WriteLog, keys: _native.KeySet) -> None:
        self._log, self.keys = log, keys

    def before_write(self, keys: Keys) -> None:
        """Does nothing; keys count as changed after the write."""

    def after_write(self, keys: Keys, evicted: EvictedRows | None, *, is_erased: bool) -> None:
        self.keys.add(keys)
        if evicted is not None:
            self.keys.add(evicted.keys)
        if self.keys.memory_bytes > CHANGED_BYTES:
            self._log.changed = None

    def rows_cleared(self, table: str) -> None:
        self._log.changed = None


class _ObservedWrite:
    """One write to a table."""

    __slots__ = ("_evicted", "_is_erased", "_keys", "_observers")

    def __init__(self, observers: tuple[RowObserver, ...], keys: Keys) -> None:
        self._observers, self._keys = observers, keys
        self._evicted: EvictedRows | None = None
        self._is_erased = False

    def note_evicted(self, evicted: EvictedRows) -> None:
        self._evicted = evicted if len(evicted) else None

    def note_erased(self) -> None:
        self._is_erased = True

    def __enter__(self) -> Write:
        for observer in self._observers:
            observer.before_write(self._keys)
        return self

    def __exit__(self, *error: object) -> None:
        # In reverse order, like nested locks: a save may hold a lock during the write.
        for observer in reversed(self._observers):
            observer.after_write(self._keys, self._evicted, is_erased=self._is_erased)
