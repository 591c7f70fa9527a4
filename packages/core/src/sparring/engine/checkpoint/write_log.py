"""Writes to one table, logged for a save that runs and for the delta after it."""

from __future__ import annotations

from contextlib import AbstractContextManager

from sparring import _native
from sparring.contracts.results import Evicted, Keys
from sparring.contracts.shard_map import KeyOwners
from sparring.contracts.storage_optional import UNWATCHED, Write
from sparring.engine.checkpoint.copy_on_write import CopyOnWriteView, cleared

__all__ = ["CHANGED_BYTES", "WriteLog"]

CHANGED_BYTES = 64 << 20
"""Most memory of the set of changed keys of a table: some 4 to 6 million keys. Beyond it the next
snapshot is a full one."""


class WriteLog:
    """Undo rows for a save that runs, and the keys that changed since the last one."""

    def __init__(self, table: str, owners: KeyOwners | None = None) -> None:
        self._table = table
        self.owners = owners
        """Of a table that is spread over several ranks; None: this rank keeps all its rows."""
        self.view: CopyOnWriteView | None = None
        self.changed: _native.KeySet | None = None
        """Keys written, erased or evicted since a base; None where they are not counted, were too
        many, or all rows were replaced."""

    @property
    def is_active(self) -> bool:
        return self.view is not None or self.changed is not None

    def check_written(self, keys: Keys) -> None:
        """Refuses keys that another rank owns."""
        if self.owners is not None:
            self.owners.check_written(keys)

    def writing(self, keys: Keys) -> AbstractContextManager[Write]:
        """Surrounds a write to rows of `keys`."""
        if self.view is None and self.changed is None:
            return UNWATCHED
        return _LoggedWrite(self, keys)

    def clearing(self) -> None:
        """All rows are about to be removed, or moved to another storage."""
        self.changed = None
        if self.view is not None:
            self.view.fail(cleared(self._table))

    def note_changed(self, keys: Keys) -> None:
        """Counts keys that differ from the base now."""
        if self.changed is None:
            return
        self.changed.add(keys)
        if self.changed.memory_bytes > CHANGED_BYTES:
            self.changed = None


class _LoggedWrite:
    """One write to a table."""

    __slots__ = ("_evicted", "_keys", "_log", "_view")

    def __init__(self, log: WriteLog, keys: Keys) -> None:
        self._log, self._keys = log, keys
        self._view = log.view
        self._evicted: Evicted | None = None

    def note_evicted(self, evicted: Evicted) -> None:
        self._evicted = evicted if len(evicted) else None

    def __enter__(self) -> Write:
        if self._view is not None:
            self._view.before_write(self._keys)
        return self

    def __exit__(self, *error: object) -> None:
        if self._view is not None:
            self._view.after_write(self._evicted)
        self._log.note_changed(self._keys)
        if self._evicted is not None:
            self._log.note_changed(self._evicted.keys)
