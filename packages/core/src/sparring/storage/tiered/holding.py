"""Rows on their way from one tier to the next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.storage.contract import Columns, Keys, Rows, Scores

__all__ = ["Held", "HoldingBuffer"]


@dataclass(frozen=True, slots=True)
class Held:
    """Rows that were handed down, in the order of their keys, each key once."""

    keys: Keys
    rows: Rows
    scores: Scores

    def __len__(self) -> int:
        return len(self.keys)


class HoldingBuffer:
    """What left one tier and has not arrived in the next.

    One thread changes it. Readers may look at any time: its contents are replaced as a whole, and
    what `held` gave never changes.

    Args:
        width: elements of a row.
        dtype: of rows.
    """

    def __init__(self, width: int, dtype: npt.DTypeLike) -> None:
        self._empty = Held(
            np.empty(0, np.int64), np.empty((0, width), dtype), np.empty(0, np.uint64)
        )
        self.held = self._empty

    def __len__(self) -> int:
        return len(self.held)

    @property
    def num_bytes(self) -> int:
        return self.held.keys.nbytes + self.held.rows.nbytes + self.held.scores.nbytes

    def add(self, keys: Keys, rows: Rows, scores: Scores) -> None:
        """Takes rows that are newer than any held of the same keys."""
        if not len(keys):
            return
        old = self.held
        if len(old):
            is_kept = ~np.isin(old.keys, keys)
            keys = np.concatenate([old.keys[is_kept], keys])
            rows = np.concatenate([old.rows[is_kept], rows])
            scores = np.concatenate([old.scores[is_kept], scores])
        order = np.argsort(keys)
        self.held = Held(keys[order], rows[order], scores[order])

    def remove(self, keys: Keys) -> None:
        """Forgets keys; unknown ones are no error."""
        old = self.held
        if len(old):
            is_kept = ~np.isin(old.keys, keys)
            self.held = Held(old.keys[is_kept], old.rows[is_kept], old.scores[is_kept])

    def clear(self) -> None:
        self.held = self._empty

    def find(self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]) -> int:
        """Fills in those of `keys` that are held and not yet found; returns how many."""
        held = self.held
        if not len(held):
            return 0
        places = np.minimum(np.searchsorted(held.keys, keys), len(held) - 1)
        is_here = (held.keys[places] == keys) & ~found
        rows[is_here] = held.rows[places[is_here], columns.begin : columns.end]
        found |= is_here
        return int(np.count_nonzero(is_here))
