"""`StepItems` and `ItemCounts`: the items of a step on all ranks, and their frequencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import State
from sparring_train.columns import ColumnBatch
from sparring_train.run.ranks import Ranks

__all__ = ["COUNTS", "ItemCounts", "StepItems", "counts_without"]

COUNTS = "item_counts"
"""Name of the state of `ItemCounts`."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepItems:
    """The item of each example of a step."""

    ids: Ids
    """``(n,)``, concatenated over ranks."""
    first: int
    """Index of this rank's first item."""

    @classmethod
    def of(cls, batch: ColumnBatch, item: str, ranks: Ranks) -> StepItems:
        """Returns the items of a whole batch, or of this rank's part of one. All ranks call it."""
        ids = batch.ids[item].ids
        if batch.total is None:
            return cls(ids, len(ids) * ranks.rank // ranks.world_size)
        counts = ranks.gathered(np.array([len(ids)], np.int64))
        return cls(ranks.gathered(np.ascontiguousarray(ids)), int(counts[: ranks.rank].sum()))


class ItemCounts:
    """Number of training examples per item, for the log-Q correction.

    In a softmax over a batch, an item is a negative as often as it occurs, so frequent items would be
    ranked too low. Therefore the logarithm of the estimated frequency is subtracted from each item's
    logit: Yi et al., "Sampling-bias-corrected neural modeling for large corpus item recommendations",
    RecSys 2019. Needs 16 bytes per item. All ranks compute the same counts.
    """

    def __init__(self) -> None:
        self._ids = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)

    def add(self, ids: Ids) -> npt.NDArray[np.float32]:
        """Counts the items of a step. Returns the logarithm of each item's frequency up to this
        step, ``(n,)``."""
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
        """Returns the state for a snapshot."""
        return State({}, {"ids": self._ids.copy(), "counts": self._counts.copy()})

    def restore(self, states: Mapping[str, Any]) -> None:
        """Loads the result of `state`, if it is in these states."""
        if COUNTS in states:
            arrays = states[COUNTS].arrays
            self._ids, self._counts = arrays["ids"].copy(), arrays["counts"].copy()


def counts_without(state: Any, items: Ids) -> Any | None:
    """Returns the saved state of `ItemCounts` without some items; None if it contains none of them.

    Args:
        state: state `COUNTS` of a snapshot.
        items: ``(n,)``, the items to remove.
    """
    is_kept = ~np.isin(state.arrays["ids"], items)
    if is_kept.all():
        return None
    return replace(state, arrays={name: each[is_kept] for name, each in state.arrays.items()})
