"""`IdCounts`: number of occurrences of each id of a feature, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparring.contracts import partition

__all__ = ["NOT_COUNTED", "IdCounts"]

NOT_COUNTED = -1
"""Value that `IdCounts.of` returns for an id that is not counted."""

_NUM_PARTITIONS = 4096

Ids = npt.NDArray[np.int64]


class IdCounts:
    """Exact counts of all ids, or of a sample of the ids if there are too many.

    Each time the number of distinct ids exceeds `max_ids`, half of them, selected by their hash,
    are discarded and no longer counted. An id that is still counted has its exact count.

    Args:
        max_ids: maximum number of distinct ids, of 16 bytes each. About as many ids are buffered.
    """

    def __init__(self, max_ids: int = 1 << 20) -> None:
        self._max_ids = max_ids
        self._ids: Ids = np.empty(0, np.int64)
        self._counts: Ids = np.empty(0, np.int64)
        self._waiting: list[Ids] = []
        self._num_waiting = 0
        self.one_in = 1
        """One of this many ids is counted."""

    def add(self, ids: Ids) -> None:
        """Counts all occurrences of ids."""
        kept = ids if self.one_in == 1 else ids[self._is_counted(ids)]
        self._waiting.append(np.array(kept, np.int64))
        self._num_waiting += len(kept)
        if self._num_waiting >= self._max_ids:
            self._settle()

    def of(self, ids: Ids) -> Ids:
        """Returns the number of occurrences of each id, or `NOT_COUNTED`."""
        self._settle()
        at = np.searchsorted(self._ids, ids)
        is_met = np.zeros(len(ids), np.bool_)
        inside = at < len(self._ids)
        is_met[inside] = self._ids[at[inside]] == ids[inside]
        counts = np.where(self._is_counted(ids), 0, NOT_COUNTED)
        counts[is_met] = self._counts[at[is_met]]
        return counts

    def parts(self) -> tuple[Ids, Ids, int]:
        """Returns the distinct ids in ascending order, their numbers of occurrences, and
        `one_in`."""
        self._settle()
        return self._ids, self._counts, self.one_in

    @staticmethod
    def joined(parts: Sequence[tuple[Ids, Ids, int]], max_ids: int = 1 << 20) -> IdCounts:
        """Combines the `parts` of several counts."""
        made = IdCounts(max_ids)
        made.one_in = max(one_in for _, _, one_in in parts)
        ids = np.concatenate([each for each, _, _ in parts])
        counts = np.concatenate([each for _, each, _ in parts])
        made._take(ids, counts)
        return made

    def _settle(self) -> None:
        if not self._num_waiting:
            return
        ids = np.concatenate([self._ids, *self._waiting])
        counts = np.concatenate([self._counts, np.ones(self._num_waiting, np.int64)])
        self._waiting.clear()
        self._num_waiting = 0
        self._take(ids, counts)

    def _take(self, ids: Ids, counts: Ids) -> None:
        distinct, inverse = np.unique(ids, return_inverse=True)
        # float64 represents sums of integers up to 2^53 exactly.
        sums = np.bincount(inverse, counts, len(distinct)).astype(np.int64)
        while True:
            is_kept = self._is_counted(distinct)
            distinct, sums = distinct[is_kept], sums[is_kept]
            if len(distinct) <= self._max_ids or self.one_in == _NUM_PARTITIONS:
                break
            self.one_in *= 2
        self._ids, self._counts = distinct, sums

    def _is_counted(self, ids: Ids) -> npt.NDArray[np.bool_]:
        counted: npt.NDArray[np.bool_] = partition(ids) < _NUM_PARTITIONS // self.one_in
        return counted
