"""Rows that a client saw last, for when no replica of their shard answers."""

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
    """Of a table, one row in each slot.

    keys ``(s,)``, is_used ``(s,)``, rows ``(s, dim)``, published ``(s,)``
    """

    keys: Keys
    is_used: Mask
    rows: Rows
    published: npt.NDArray[np.float64]

    def positions(self, keys: Keys) -> npt.NDArray[np.int64]:
        # The upper half of a product with 2**64 / the golden ratio.
        mixed = (keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
        positions: npt.NDArray[np.int64] = (mixed % np.uint64(len(self.keys))).astype(np.int64)
        return positions


class RowCache:
    """A bounded table of rows by key. Any thread may call any method.

    A key has one slot, and takes it from the key that was there: a pull of many rows costs some passes
    over arrays, and none over a list of keys by age. Of as many keys as slots, 63 % are kept.

    Args:
        num_rows: slots of each table; memory is taken as they fill.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._lock = threading.Lock()
        self._tables: dict[str, _Slots] = {}

    def store(self, table: str, keys: Keys, rows: Rows, found: Mask, published: float) -> None:
        """Keeps rows that a server gave, and drops those of keys that have none any more.

        Args:
            table: their table.
            keys: ``(n,)``, distinct.
            rows: ``(n, dim)``.
            found: ``(n,)``: whether the key has a row.
            published: when their version was, on the client's clock.
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
            # Of keys with one slot the last one stays, in each array.
            slots.keys[kept] = keys[found]
            slots.rows[kept] = rows[found]
            slots.is_used[kept] = True
            slots.published[kept] = published

    def read(self, table: str, keys: Keys, rows: Rows) -> npt.NDArray[np.float64]:
        """Fills rows of keys that are kept; ``(n,)``: when their version was published, or NaN."""
        published = np.full(len(keys), np.nan)
        with self._lock:
            slots = self._tables.get(table)
            if slots is not None:
                positions = slots.positions(keys)
                kept = slots.is_used[positions] & (slots.keys[positions] == keys)
                rows[kept] = slots.rows[positions[kept]]
                published[kept] = slots.published[positions[kept]]
        return published
