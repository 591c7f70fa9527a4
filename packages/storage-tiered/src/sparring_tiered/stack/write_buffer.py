"""Rows that wait to be written to the next tier."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.contracts import Columns, Keys, Rows, Scores

__all__ = ["BufferedRows", "WriteBuffer"]


@dataclass(frozen=True, slots=True)
class BufferedRows:
    """Rows sorted by key; keys are distinct."""

    keys: Keys
    rows: Rows
    scores: Scores

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def num_bytes(self) -> int:
        return self.keys.nbytes + self.rows.nbytes + self.scores.nbytes

    def find_positions(self, keys: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Returns the position of each of `keys` in these rows, and whether it is there."""
        places = np.minimum(np.searchsorted(self.keys, keys), len(self) - 1)
        return places, self.keys[places] == keys

    def without(self, keys: Keys) -> BufferedRows:
        is_kept = ~np.isin(self.keys, keys)
        return BufferedRows(self.keys[is_kept], self.rows[is_kept], self.scores[is_kept])


@dataclass(frozen=True, slots=True)
class _Contents:
    """Immutable contents of a buffer."""

    waiting: tuple[BufferedRows, ...] = ()
    """Newest first."""
    departed: BufferedRows | None = None
    """Rows that are being written. All waiting rows are newer."""

    @property
    def parts(self) -> tuple[BufferedRows, ...]:
        """Newest first; no part is empty."""
        return self.waiting if self.departed is None else (*self.waiting, self.departed)


class WriteBuffer:
    """Rows that one tier evicted and that are not yet stored in the next tier.

        add ──► waiting ──depart──► departed ──land──► in the next tier
                   ▲                   │
                   └─────put_back──────┘

    Rows further left are newer than rows of the same key further right. Readers may run at any time: the
    contents are replaced atomically, so readers find departed rows, and a row is in the next tier before
    it is removed from here. One thread adds and removes rows; another thread may concurrently call
    `depart`, `land` and `put_back`.

    Args:
        width: Elements per row.
        dtype: Dtype of rows.
    """

    def __init__(self, width: int, dtype: npt.DTypeLike) -> None:
        self._empty = BufferedRows(
            np.empty(0, np.int64), np.empty((0, width), dtype), np.empty(0, np.uint64)
        )
        self._contents = _Contents()
        self._changing = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._contents.parts)

    @property
    def num_rows(self) -> int:
        """Number of distinct keys in the buffer."""
        return len(self.merged())

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self._contents.parts)

    @property
    def has_waiting(self) -> bool:
        return bool(self._contents.waiting)

    def merged(self) -> BufferedRows:
        """Returns the newest row of each key."""
        return _merge(self._contents.parts) or self._empty

    # -- on the thread that adds and removes --------------------------------

    def add(self, keys: Keys, rows: Rows, scores: Scores) -> None:
        """Adds rows that are newer than all buffered rows of the same keys."""
        if not len(keys):
            return
        order = np.argsort(keys)
        newest = BufferedRows(keys[order], rows[order], scores[order])
        with self._changing:
            waiting = [newest, *self._contents.waiting]
            # Each part is at least twice as large as the one before it. This limits the number of parts
            # to search, and a write does not copy the whole backlog.
            while len(waiting) > 1 and 2 * len(waiting[0]) > len(waiting[1]):
                both = _merge(waiting[:2])
                assert both is not None
                waiting[:2] = [both]
            self._contents = _Contents(tuple(waiting), self._contents.departed)

    def remove(self, keys: Keys) -> None:
        """Removes keys, and ignores unknown ones. No rows may have departed."""
        with self._changing:
            assert self._contents.departed is None
            kept = [part.without(keys) for part in self._contents.waiting]
            self._contents = _Contents(tuple(part for part in kept if len(part)))

    def clear(self) -> None:
        """Removes all rows. No rows may have departed."""
        with self._changing:
            assert self._contents.departed is None
            self._contents = _Contents()

    # -- the writer of the next tier --------------------------------------

    def depart(self) -> BufferedRows | None:
        """Begins a write of all waiting rows. Readers still find them until `land`.

        Returns:
            The rows to write; None if no rows wait.
        """
        with self._changing:
            assert self._contents.departed is None
            departed = _merge(self._contents.waiting)
            self._contents = _Contents((), departed)
        return departed

    def land(self) -> None:
        """Removes the departed rows, after they were stored in the next tier."""
        with self._changing:
            self._contents = _Contents(self._contents.waiting)

    def put_back(self) -> None:
        """Makes departed rows wait again, after a failed write that may have stored some of them."""
        with self._changing:
            self._contents = _Contents(self._contents.parts)

    # -- readers ----------------------------------------------------------------

    def find(self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]) -> int:
        """Fills `rows` and `found` for keys that were not found yet; returns their number."""
        num_found = 0
        for part in self._contents.parts:
            places, is_here = part.find_positions(keys)
            is_here &= ~found
            rows[is_here] = part.rows[places[is_here], columns.begin : columns.end]
            found |= is_here
            num_found += int(np.count_nonzero(is_here))
        return num_found

    def contains(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Returns which of `keys` are in the buffer."""
        found = np.zeros(len(keys), np.bool_)
        for part in self._contents.parts:
            found |= part.find_positions(keys)[1]
        return found


def _merge(parts: Sequence[BufferedRows]) -> BufferedRows | None:
    """Merges parts, newest first, into one; returns None if there are no parts."""
    if len(parts) < 2:
        return parts[0] if parts else None
    keys, first = np.unique(np.concatenate([part.keys for part in parts]), return_index=True)
    rows = np.concatenate([part.rows for part in parts])[first]
    return BufferedRows(keys, rows, np.concatenate([part.scores for part in parts])[first])
