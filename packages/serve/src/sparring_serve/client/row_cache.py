"""Rows that a client received last, used if no replica of their shard replies."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["RowCache"]

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class _Slots:
    """One row per slot of a table.

    `keys` ``(s,)``, `is_used` ``(s,)``, `rows` ``(s, dim)``, `published` ``(s,)``
    """

    keys: Keys
    is_used: Mask
    rows: Rows
    published: npt.NDArray[np.float64]

    def positions(self, keys: Keys) -> npt.NDArray[np.int64]:
        # Fibonacci hashing: the upper half of a product with 2**64 / the golden ratio.
        mixed = (keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
        positions: npt.NDArray[np.int64] = (mixed % np.uint64(len(self.keys))).astype(np.int64)
        return positions


class RowCache:
    """Bounded cache of rows by key. All methods are thread-safe.

    A key can be stored in only one slot, where it replaces the previous key. Therefore, a lookup of
    many rows costs a few passes over arrays, without a list of keys by age. With as many keys as
    slots, 63 % are kept.

    Args:
        num_rows: Number of slots per table; memory is used as they fill.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._lock = threading.Lock()
        self._tables: dict[str, _Slots] = {}

    def store(self, table: str, keys: Keys, rows: Rows, found: Mask, published: float) -> None:
        """Stores rows that a server returned, and removes keys that no longer have a row.

        Args:
            table: Name of the table.
            keys: ``(n,)``, distinct.
            rows: ``(n, dim)``.
            found: ``(n,)``: whether the key has a row.
            published: Publication time of their version, on the client's clock.
        """
        with self._lock:
            slots = self._tables.get(table)
            if slots is None:
                count = self.num_rows
                slots = self._tables[table] = _Slots(
                    np.zeros(count, np.int64),
                    np.zeros(count, np.bool_),
                    np.zeros((count, rows.shape[1]), np.float32),
                    np.zeros(count, np.float64),
                )
            positions = slots.positions(keys)
            gone = positions[~found]
            slots.is_used[gone[slots.keys[gone] == keys[~found]]] = False
            kept = positions[found]
            # If keys share a slot, the last one remains, in all arrays.
            slots.keys[kept] = keys[found]
            slots.rows[kept] = rows[found]
            slots.is_used[kept] = True
            slots.published[kept] = published

    def read(self, table: str, keys: Keys, rows: Rows) -> npt.NDArray[np.float64]:
        """Fills in the rows of cached keys; returns the publication times of their versions,
        ``(n,)``, or NaN."""
        published = np.full(len(keys), np.nan)
        with self._lock:
            slots = self._tables.get(table)
            if slots is not None:
                positions = slots.positions(keys)
                kept = slots.is_used[positions] & (slots.keys[positions] == keys)
                rows[kept] = slots.rows[positions[kept]]
                published[kept] = slots.published[positions[kept]]
        return published
