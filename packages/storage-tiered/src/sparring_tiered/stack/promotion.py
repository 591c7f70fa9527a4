"""Rows that finds read from lower tiers, for promotion into the first tier by the next write.

`find` changes no tier, but adds the rows that it read to this buffer. No row changes between two writes,
so the buffered rows equal the rows in the tiers. The next write takes all of them: it copies rows into
the first tier, and knows without a find which keys exist in lower tiers.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from sparring.adapter import BloomFilter
from sparring.contracts import Keys, Rows

__all__ = ["Promotion", "PromotionBuffer"]


_MAX_SPARE = 4
"""Maximum number of arrays that are kept for later finds: the expected number of concurrent finds."""


class Promotion:
    """Contents of a `PromotionBuffer`, taken by a write.

    Args:
        known: Keys that exist in lower tiers, ascending.
        keys: Keys to promote, distinct and ascending; a subset of `known`.
        origins: For each of `keys`, the position of the tier that it was found in.
        places: For each of `keys`, the position of its row in the concatenated parts.
        parts: Whole rows.
    """

    __slots__ = ("_parts", "_places", "keys", "known", "origins")

    def __init__(
        self, known: Keys, keys: Keys, origins: Keys, places: Keys, parts: list[Rows]
    ) -> None:
        self.known = known
        self.keys = keys
        self.origins = origins
        self._places = places
        self._parts = parts

    def rows(self, is_wanted: npt.NDArray[np.bool_]) -> Rows:
        """Returns the rows of the selected `keys`; `keys` must not be empty."""
        all_rows = self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)
        return all_rows[self._places[is_wanted]]

    def give_back(self) -> list[Rows]:
        """Returns the parts, and releases them."""
        parts, self._parts = self._parts, []
        return parts


class PromotionBuffer:
    """Bounded buffer of found rows. Concurrent readers may use it.

    Args:
        policy: ``always``, ``second_touch`` or ``never``.
        max_bytes: Maximum size of the rows.
        max_rows: Maximum number of rows. More promoted rows would evict each other.
        empty: ``(0, width)`` rows of the table.
    """

    def __init__(self, policy: str, max_bytes: int, max_rows: int, empty: Rows) -> None:
        self.policy = policy
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._empty = empty
        self._touched: BloomFilter | None = None
        if policy == "second_touch":
            self._touched = BloomFilter(max(1024, min(max_rows, 1 << 22)))
        self._lock = threading.Lock()
        self._spare: list[Rows] = []
        self.clear()

    @property
    def memory_bytes(self) -> int:
        filter_bytes = 0 if self._touched is None else self._touched.memory_bytes
        return self._num_bytes + filter_bytes + sum(each.nbytes for each in self._spare)

    def clear(self) -> None:
        """Removes all rows and keys, because they may have changed."""
        self._known: list[Keys] = []
        self._keys: list[Keys] = []
        self._rows: list[Rows] = []
        self._origins: list[int] = []
        self._num_bytes = self._num_rows = 0

    def reserve_rows(self, num_rows: int) -> Rows | None:
        """Returns an uninitialized array for at least `num_rows` whole rows, to be passed to `add`.

        Returns None if no rows are promoted, so that the find need not read whole rows.
        """
        if self.policy == "never":
            return None
        with self._lock:
            while self._spare:
                spare = self._spare.pop()
                if len(spare) >= num_rows:
                    return spare
        # Larger than required, so that the next batch, which has about the same size, fits too.
        return np.empty((num_rows + num_rows // 4, self._empty.shape[1]), self._empty.dtype)

    def add(self, keys: Keys, rows: Rows | None, origin: int) -> None:
        """Adds keys that were found in a tier, with their whole rows if they were read.

        Args:
            keys: ``(n,)``; the caller must not change the array later.
            rows: ``(n, width)``, the first rows of an array from `reserve_rows`, or another array.
            origin: Position of the tier.
        """
        with self._lock:
            if not len(keys):
                if rows is not None:
                    self._keep(rows)
                return
            self._known.append(keys)
            if rows is None:
                return
            if self._touched is not None:
                is_second = self._touched.contains(keys)
                self._note_touch(keys[~is_second])
                keys, kept = keys[is_second], rows[is_second]
                self._keep(rows)
                rows = kept
            has_room = (
                self._num_bytes + rows.nbytes <= self._max_bytes
                and self._num_rows + len(keys) <= self._max_rows
            )
            if not has_room:
                self._keep(rows)
                return
            self._keys.append(keys)
            self._rows.append(rows)
            self._origins.append(origin)
            self._num_bytes += rows.nbytes
            self._num_rows += len(keys)

    def take(self) -> Promotion:
        """Returns the contents, and empties the buffer."""
        with self._lock:
            nothing = np.empty(0, np.int64)
            if not self._known:
                return Promotion(nothing, nothing, nothing, nothing, [])
            known = np.unique(np.concatenate(self._known))
            keys, places = np.unique(np.concatenate([*self._keys, nothing]), return_index=True)
            counts = [len(each) for each in self._keys]
            origins = np.repeat(np.array(self._origins, np.int64), counts)[places]
            promotion = Promotion(known, keys, origins, places, self._rows)
            self.clear()
            return promotion

    def give_back(self, promotion: Promotion) -> None:
        """Keeps the arrays of a promotion for later finds. Its rows must no longer be in use."""
        with self._lock:
            for room in promotion.give_back():
                self._keep(room)

    def _keep(self, rows: Rows) -> None:
        room = rows if rows.base is None else rows.base
        num_bytes = sum(each.nbytes for each in self._spare)
        if len(self._spare) < _MAX_SPARE and num_bytes + room.nbytes <= self._max_bytes:
            self._spare.append(room)

    def _note_touch(self, keys: Keys) -> None:
        assert self._touched is not None
        if self._touched.num_added + len(keys) > self._touched.planned_keys:
            self._touched.clear()  # starts a new generation, in which old keys no longer count
        self._touched.add(keys)
