"""Keys of one table that were changed since the last change note."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparring.adapter import KeySet
from sparring.contracts import EvictedRows, Keys

__all__ = ["TakenKeys", "UnpublishedKeys"]

MAX_BYTES = 1 << 30
"""Maximum memory of the set, about 60 to 90 million keys. If it is exceeded, the next note reports that
any key may have changed."""


@dataclass(frozen=True, slots=True)
class TakenKeys:
    """Keys for one note."""

    changed: Keys
    """Distinct keys that were written, erased or evicted."""
    erased: Keys
    """Changed keys that no longer have a row."""
    is_everything: bool
    """Whether any key may have changed."""


class UnpublishedKeys:
    """Collects changed keys. Only the thread that writes may use it."""

    def __init__(self) -> None:
        self._changed = KeySet()
        self._erased: set[int] = set()
        self._is_everything = True

    def before_write(self, keys: Keys) -> None:
        """Does nothing, because no row has changed yet."""

    def after_write(self, keys: Keys, evicted: EvictedRows | None, *, is_erased: bool) -> None:
        """Adds the keys of a write and the keys that it evicted."""
        self._add(keys)
        if is_erased:
            self._erased.update(keys.tolist())
        elif self._erased:
            self._erased.difference_update(keys.tolist())
        if evicted is not None:
            self._add(evicted.keys)
            self._erased.update(evicted.keys.tolist())

    def rows_cleared(self, table: str) -> None:
        """Records that any key may have changed."""
        self.note_everything()

    def note_everything(self) -> None:
        """Records that any key may have changed."""
        self._is_everything = True
        self._changed, self._erased = KeySet(), set()

    def take(self) -> TakenKeys:
        """Returns the collected keys, and starts a new collection."""
        changed, erased = self._changed.keys(), np.array(sorted(self._erased), np.int64)
        taken = TakenKeys(changed, erased, self._is_everything)
        self._changed, self._erased, self._is_everything = KeySet(), set(), False
        return taken

    def put_back(self, taken: TakenKeys) -> None:
        """Adds keys again whose note was not published."""
        if taken.is_everything:
            self.note_everything()
            return
        # Keys that were written since then have a row.
        again = taken.erased[~self._changed.contains(taken.erased)]
        self._add(taken.changed)
        self._erased.update(again.tolist())

    def _add(self, keys: Keys) -> None:
        if self._is_everything or not len(keys):
            return
        self._changed.add(keys)
        if self._changed.memory_bytes > MAX_BYTES:
            self.note_everything()
