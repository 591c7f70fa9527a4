"""`StepItems`: the items of a step on all ranks, which a softmax over them compares; `ItemCounts`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import State
from sparring_train.columns import ColumnBatch
from sparring_train.run.ranks import Ranks

__all__ = ["COUNTS", "ItemCounts", "StepItems"]

COUNTS = "item_counts"
"""The name of the state that `ItemCounts` has."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepItems:
    """One item of each example of a step."""

    ids: Ids
    """``(n,)``, of all ranks, one rank after the other."""
    first: int
    """Place of this rank's first."""

    @classmethod
    def of(cls, batch: ColumnBatch, item: str, ranks: Ranks) -> StepItems:
        """Items of a whole batch, or of this rank's part of one; all ranks call it."""
        ids = batch.ids[item].ids
        if batch.total is None:
            return cls(ids, len(ids) * ranks.rank // ranks.world_size)
        counts = ranks.gathered(np.array([len(ids)], np.int64))
        return cls(ranks.gathered(np.ascontiguousarray(ids)), int(counts[: ranks.rank].sum()))


class ItemCounts:
    """How often each item was trained on, for the log-Q correction.

    In a softmax over a batch an item is a negative as often as it is met, so frequent items would be
    ranked too low. The logarithm of the estimated frequency is subtracted from each item's logit: Yi et
    al., "Sampling-bias-corrected neural modeling for large corpus item recommendations", RecSys 2019.
    16 bytes an item; all ranks count the same.
    """

    def __init__(self) -> None:
        self._ids = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)

    def add(self, ids: Ids) -> npt.NDArray[np.float32]:
        """Counts the items of a step. Returns the logarithm of each one's frequency so far, ``(n,)``."""
        met, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
        places = np.searchsorted(self._ids, met)
        inside = places < len(self._ids)
        is_new = ~inside
        is_new[inside] = self._ids[places[inside]] != met[inside]
        if is_new.any():
            self._ids = np.insert(self._ids, places[is_new], met[is_new])
            self._counts = np.insert(self._counts, places[is_new], 0)
            places = np.searchsorted(self._ids, met)
        self._counts[places] += counts
        frequencies = self._counts[places] / self._counts.sum()
        logarithms: npt.NDArray[np.float32] = np.log(frequencies).astype(np.float32)[inverse]
        return logarithms

    def state(self) -> State:
        """For a snapshot."""
        return State({}, {"ids": self._ids.copy(), "counts": self._counts.copy()})

    def restore(self, states: Mapping[str, Any]) -> None:
        """Goes on from the `state` in these states, where it is."""
        if COUNTS in states:
            arrays = states[COUNTS].arrays
            self._ids, self._counts = arrays["ids"].copy(), arrays["counts"].copy()
