"""A click log in memory, with what a reader of its file will see of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring_train.data.batches import ClickBatch
from sparring_train.data.criteo_format import MISSING_IDS, transform_integers

__all__ = ["ClickLog"]


@dataclass(frozen=True, slots=True)
class ClickLog:
    """Rows of a synthetic click log, with the probability that each was clicked."""

    integers: npt.NDArray[np.int64]
    """``(n, 13)``; 0 where missing."""
    is_missing_integer: npt.NDArray[np.bool_]
    """``(n, 13)``"""
    ids: npt.NDArray[np.int64]
    """``(n, 26)``, each below 2**32; `MISSING_IDS` where missing."""
    labels: npt.NDArray[np.float32]
    """``(n,)``: 1 with the probability in `probabilities`, else 0."""
    probabilities: npt.NDArray[np.float64]
    """``(n,)``: of the planted model; no other predicts these labels better."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_missing_id(self) -> npt.NDArray[np.bool_]:
        """``(n, 26)``"""
        is_missing: npt.NDArray[np.bool_] = self.ids == MISSING_IDS
        return is_missing

    @property
    def dense(self) -> npt.NDArray[np.float32]:
        """``(n, 13)``, as a reader of the written log gets them."""
        return transform_integers(self.integers, self.is_missing_integer)

    @property
    def batch(self) -> ClickBatch:
        """All rows, as a reader of the written log gets them."""
        return ClickBatch(self.dense, self.ids, self.labels)
