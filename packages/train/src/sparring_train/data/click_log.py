"""A click log in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring_train.data.batches import ClickBatch
from sparring_train.data.criteo_format import MISSING_IDS, transform_integers

__all__ = ["ClickLog"]


@dataclass(frozen=True, slots=True)
class ClickLog:
    """Rows of a synthetic click log, with the click probability of each row."""

    integers: npt.NDArray[np.int64]
    """``(n, 13)``; 0 if missing."""
    is_missing_integer: npt.NDArray[np.bool_]
    """``(n, 13)``"""
    ids: npt.NDArray[np.int64]
    """``(n, 26)``, each less than 2**32; `MISSING_IDS` if missing."""
    labels: npt.NDArray[np.float32]
    """``(n,)``: 1 with the probability in `probabilities`, otherwise 0."""
    probabilities: npt.NDArray[np.float64]
    """``(n,)``, of the planted model; they are the best predictions of the labels."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_missing_id(self) -> npt.NDArray[np.bool_]:
        """``(n, 26)``"""
        is_missing: npt.NDArray[np.bool_] = self.ids == MISSING_IDS
        return is_missing

    @property
    def dense(self) -> npt.NDArray[np.float32]:
        """``(n, 13)``, transformed like the numbers of a log file."""
        return transform_integers(self.integers, self.is_missing_integer)

    @property
    def batch(self) -> ClickBatch:
        """All rows as a batch."""
        return ClickBatch(self.dense, self.ids, self.labels)
