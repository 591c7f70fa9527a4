"""Rows that a find met below the first tier, and that the next write may take up.

`find` changes no tier. It leaves here what it had to fetch; between two writes no row changes, so
what lies here is what the tiers hold. The next write takes it all: it copies rows into the first
tier, and it knows of keys that exist below without a trip.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from sparring.bloom import BloomFilter
from sparring.forking import Forkable
from sparring.storage.contract import Keys, Rows

__all__ = ["Staged", "Staging"]


_MOST_SPARE = 4
"""Arrays that are kept for later finds: as many as may be under way beside each other."""


class Staged:
    """What `Staging.take` gives.

    Args:
        known: keys that exist below the first tier, ascending.
        keys: of these, the ones whose rows should come up, each once, ascending.
        origins: for each, the place of the tier that it was found in.
        places: for each, where its row is in the parts one behind the other.
        parts: whole rows.
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
        """The rows of those of `keys`, of which there is at least one."""
        all_rows = self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)
        return all_rows[self._places[is_wanted]]

    def give_back(self) -> list[Rows]:
        """The parts; there are none any more."""
        parts, self._parts = self._parts, []
        return parts


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
        self._touched: BloomFilter | None = None
        if policy == "second_touch":
            self._touched = BloomFilter(max(1024, min(most_rows, 1 << 22)))
        self.begin_anew()

    def begin_anew(self) -> None:
        self._lock = threading.Lock()
        # Another thread may have half changed what it guards. All of that is found again.
        self._spare: list[Rows] = []
        self.clear()

    @property
    def wants_rows(self) -> bool:
        """Whether whole rows should be read."""
        return self.policy != "never"

    @property
    def memory_bytes(self) -> int:
        filter_bytes = 0 if self._touched is None else self._touched.memory_bytes
        return self._num_bytes + filter_bytes + sum(each.nbytes for each in self._spare)

    def clear(self) -> None:
        """Forgets rows and keys, because they may have changed."""
        self._known: list[Keys] = []
        self._keys: list[Keys] = []
        self._rows: list[Rows] = []
        self._origins: list[int] = []
        self._num_bytes = self._num_rows = 0

    def lend(self, num_rows: int) -> Rows:
        """Room for whole rows, which `add` takes back; what was in it is undefined."""
        with self._lock:
            while self._spare:
                spare = self._spare.pop()
                if len(spare) >= num_rows:
                    return spare
        # Larger than asked for, so that the next batch, which is about as large, fits too.
        return np.empty((num_rows + num_rows // 4, self._empty.shape[1]), self._empty.dtype)

    def add(self, keys: Keys, rows: Rows | None, origin: int) -> None:
        """Takes keys that were found in a tier, with their whole rows where they were read.

        Args:
            keys: ``(n,)``, which nobody changes from now on.
            rows: ``(n, width)``: the first rows of what `lend` gave, or an array of its own.
            origin: the place of the tier.
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
                self._num_bytes + rows.nbytes <= self._most_bytes
                and self._num_rows + len(keys) <= self._most_rows
            )
            if not has_room:
                self._keep(rows)
                return
            self._keys.append(keys)
            self._rows.append(rows)
            self._origins.append(origin)
            self._num_bytes += rows.nbytes
            self._num_rows += len(keys)

    def take(self) -> Staged:
        """All of it; nothing is left."""
        with self._lock:
            nothing = np.empty(0, np.int64)
            if not self._known:
                return Staged(nothing, nothing, nothing, nothing, [])
            known = np.unique(np.concatenate(self._known))
            keys, places = np.unique(np.concatenate([*self._keys, nothing]), return_index=True)
            counts = [len(each) for each in self._keys]
            origins = np.repeat(np.array(self._origins, np.int64), counts)[places]
            staged = Staged(known, keys, origins, places, self._rows)
            self.clear()
            return staged

    def give_back(self, staged: Staged) -> None:
        """Nobody needs the rows of what was taken any more."""
        with self._lock:
            for room in staged.give_back():
                self._keep(room)

    def _keep(self, rows: Rows) -> None:
        room = rows if rows.base is None else rows.base
        num_bytes = sum(each.nbytes for each in self._spare)
        if len(self._spare) < _MOST_SPARE and num_bytes + room.nbytes <= self._most_bytes:
            self._spare.append(room)

    def _note_touch(self, keys: Keys) -> None:
        assert self._touched is not None
        if self._touched.num_added + len(keys) > self._touched.planned_keys:
            self._touched.clear()  # a new generation: what was met long ago counts no more
        self._touched.add(keys)
