"""Rows that a find met below the first tier, and that the next write may take up.

`find` changes no tier. It leaves here what it had to fetch; between two writes no row changes, so
what lies here is what the tiers hold. The next write takes it all: it copies rows into the first
tier, and it knows of keys that exist below without a trip.
"""

from __future__ import annotations

import threading

import numpy as np

from sparring.bloom import BloomFilter
from sparring.forking import Forkable
from sparring.storage.contract import Keys, Rows

__all__ = ["Staged", "Staging"]


class Staged:
    """What `Staging.take` gives.

    Args:
        known: keys that exist below the first tier, ascending.
        keys: of these, the ones whose rows should come up, each once.
        rows: their rows.
        origins: for each, the place of the tier that it was found in.
    """

    __slots__ = ("keys", "known", "origins", "rows")

    def __init__(self, known: Keys, keys: Keys, rows: Rows, origins: Keys) -> None:
        self.known = known
        self.keys = keys
        self.rows = rows
        self.origins = origins


class Staging(Forkable):
    """Bounded, and safe for use by readers beside each other.

    Args:
        policy: ``always``, ``second_touch`` or ``never``.
        most_bytes: of rows.
        most_rows: of rows; more than that would push each other out.
        empty: ``(0, width)`` rows of the table.
    """

    def __init__(self, policy: str, most_bytes: int, most_rows: int, empty: Rows) -> None:
        super().__init__()
        self.policy = policy
        self._most_bytes = most_bytes
        self._most_rows = most_rows
        self._empty = empty
        self.begin_anew()
        self._touched: BloomFilter | None = None
        if policy == "second_touch":
            self._touched = BloomFilter(max(1024, min(most_rows, 1 << 22)))
        self.clear()

    def begin_anew(self) -> None:
        self._lock = threading.Lock()

    @property
    def wants_rows(self) -> bool:
        """Whether whole rows should be read."""
        return self.policy != "never"

    @property
    def memory_bytes(self) -> int:
        filter_bytes = 0 if self._touched is None else self._touched.memory_bytes
        return self._num_bytes + filter_bytes

    def clear(self) -> None:
        """Forgets rows and keys, because they may have changed."""
        self._known: list[Keys] = []
        self._keys: list[Keys] = []
        self._rows: list[Rows] = []
        self._origins: list[Keys] = []
        self._num_bytes = self._num_rows = 0

    def add(self, keys: Keys, rows: Rows | None, origin: int) -> None:
        """Takes keys that were found in a tier, with their whole rows where they were read."""
        if not len(keys):
            return
        with self._lock:
            self._known.append(keys)
            if rows is None:
                return
            if self._touched is not None:
                is_second = self._touched.contains(keys)
                self._note_touch(keys[~is_second])
                keys, rows = keys[is_second], rows[is_second]
            if self._num_bytes + rows.nbytes > self._most_bytes:
                return
            if self._num_rows + len(keys) > self._most_rows:
                return
            self._keys.append(keys)
            self._rows.append(rows)
            self._origins.append(np.full(len(keys), origin, np.int64))
            self._num_bytes += rows.nbytes
            self._num_rows += len(keys)

    def take(self) -> Staged:
        """All of it; nothing is left."""
        with self._lock:
            nothing = np.empty(0, np.int64)
            if not self._known:
                return Staged(nothing, nothing, self._empty, nothing)
            known = np.unique(np.concatenate(self._known))
            keys, first = np.unique(np.concatenate([*self._keys, nothing]), return_index=True)
            rows = np.concatenate([*self._rows, self._empty])[first]
            origins = np.concatenate([*self._origins, nothing])[first]
            self.clear()
            return Staged(known, keys, rows, origins)

    def _note_touch(self, keys: Keys) -> None:
        assert self._touched is not None
        if self._touched.num_added + len(keys) > self._touched.planned_keys:
            self._touched.clear()  # a new generation: what was met long ago counts no more
        self._touched.add(keys)
