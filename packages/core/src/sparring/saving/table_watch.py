"""What a container knows of the writes to one table: for snapshots, and for deltas after them."""

from __future__ import annotations

from contextlib import AbstractContextManager

from sparring import _native
from sparring.saving.freezing import FrozenTable, cleared
from sparring.storage.contract import Evicted, Keys
from sparring.storage.watching import UNWATCHED, Write

__all__ = ["CHANGED_BYTES", "TableWatch"]

CHANGED_BYTES = 64 << 20
"""What the set of changed keys of a table may take: some 4 to 6 million keys. Beyond it the next
snapshot is a full one."""


class TableWatch:
    """Keeps old rows for a save that runs, and the keys that changed since the last one."""

    def __init__(self, table: str) -> None:
        self._table = table
        self.frozen: FrozenTable | None = None
        self.changed: _native.KeySet | None = None
        """Keys written, erased or evicted since a base; None where nobody counts, or there were
        too many, or all rows were replaced."""

    @property
    def is_active(self) -> bool:
        return self.frozen is not None or self.changed is not None

    def writing(self, keys: Keys) -> AbstractContextManager[Write]:
        """Surrounds a write to rows of `keys`."""
        if self.frozen is None and self.changed is None:
            return UNWATCHED
        return _WatchedWrite(self, keys)

    def clearing(self) -> None:
        """All rows are about to be removed, or to lie in another storage."""
        self.changed = None
        if self.frozen is not None:
            self.frozen.fail(cleared(self._table))

    def note_changed(self, keys: Keys) -> None:
        """Counts keys that differ from the base now."""
        if self.changed is None:
            return
        self.changed.add(keys)
        if self.changed.memory_bytes > CHANGED_BYTES:
            self.changed = None


class _WatchedWrite:
    """One write to a table."""

    __slots__ = ("_evicted", "_frozen", "_keys", "_watch")

    def __init__(self, watch: TableWatch, keys: Keys) -> None:
        self._watch, self._keys = watch, keys
        self._frozen = watch.frozen
        self._evicted: Evicted | None = None

    def note_evicted(self, evicted: Evicted) -> None:
        self._evicted = evicted if len(evicted) else None

    def __enter__(self) -> Write:
        if self._frozen is not None:
            self._frozen.before_write(self._keys)
        return self

    def __exit__(self, *error: object) -> None:
        if self._frozen is not None:
            self._frozen.after_write(self._evicted)
        self._watch.note_changed(self._keys)
        if self._evicted is not None:
            self._watch.note_changed(self._evicted.keys)
