"""The keys of one table that a step has changed, and no change note has told of yet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparring.adapter import KeySet
from sparring.contracts import EvictedRows, Keys

__all__ = ["TakenKeys", "UnpublishedKeys"]

MAX_BYTES = 1 << 30
"""Most memory of the set: some 60 to 90 million keys. Beyond it the next note says that any key may have
changed."""


@dataclass(frozen=True, slots=True)
class TakenKeys:
    """Keys that one note tells of."""

    changed: Keys
    """Written, erased and evicted ones, each once."""
    erased: Keys
    """Of these, the ones that have no row any more."""
    is_everything: bool
    """Any key may have changed."""


class UnpublishedKeys:
    """Collects changes, on the thread that writes."""

    def __init__(self) -> None:
        self._changed = KeySet()
        self._erased: set[int] = set()
        self._is_everything = True

    def before_write(self, keys: Keys) -> None:
        """Nothing has changed before the write."""

    def after_write(self, keys: Keys, evicted: EvictedRows | None, *, is_erased: bool) -> None:
        """Adds the keys of a write, and those that it evicted."""
        self._add(keys)
        if is_erased:
            self._erased.update(keys.tolist())
        elif self._erased:
            self._erased.difference_update(keys.tolist())
        if evicted is not None:
            self._add(evicted.keys)
            self._erased.update(evicted.keys.tolist())

    def rows_cleared(self, table: str) -> None:
        """Notes that any key may have changed."""
        self.note_everything()

    def note_everything(self) -> None:
        """Notes that any key may have changed."""
        self._is_everything = True
        self._changed, self._erased = KeySet(), set()

    def take(self) -> TakenKeys:
        """Returns what was collected, and begins again."""
        changed, erased = self._changed.keys(), np.array(sorted(self._erased), np.int64)
        taken = TakenKeys(changed, erased, self._is_everything)
        self._changed, self._erased, self._is_everything = KeySet(), set(), False
        return taken

    def put_back(self, taken: TakenKeys) -> None:
        """Takes back keys whose note was not published."""
        if taken.is_everything:
            self.note_everything()
            return
        # Those that were written since have a row.
        again = taken.erased[~self._changed.contains(taken.erased)]
        self._add(taken.changed)
        self._erased.update(again.tolist())

    def _add(self, keys: Keys) -> None:
        if self._is_everything or not len(keys):
            return
        self._changed.add(keys)
        if self._changed.memory_bytes > MAX_BYTES:
            self.note_everything()
