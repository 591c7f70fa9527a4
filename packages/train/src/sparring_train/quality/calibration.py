"""`CalibrationCounts`: predicted probabilities compared with observed rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["CalibrationCounts", "CalibrationGroup"]

_MAX_LOGIT = 16.0
_NUM_BINS = 3200


@dataclass(frozen=True, slots=True)
class CalibrationGroup:
    """Samples with similar predictions."""

    num_samples: int
    predicted: float
    """Mean prediction."""
    observed: float
    """Share of samples with the label 1."""


class CalibrationCounts:
    """Sums predictions and labels in bins of equal width in the logit of the prediction.

    Needs constant memory. Predictions that are NaN are left out.
    """

    def __init__(self) -> None:
        self._sums = np.zeros((3, _NUM_BINS))
        self.num_updates = 0

    def update(self, predictions: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
        """Adds a batch.

        Args:
            predictions: ``(b,)``, probabilities.
            labels: ``(b,)``, 0 or 1.
        """
        self.num_updates += 1
        is_number = ~np.isnan(predictions)
        predicted = predictions[is_number].astype(np.float64)
        given = labels[is_number].astype(np.float64)
        with np.errstate(divide="ignore"):
            logits = np.log(predicted) - np.log1p(-predicted)
        place = (logits.clip(-_MAX_LOGIT, _MAX_LOGIT) + _MAX_LOGIT) / (2 * _MAX_LOGIT) * _NUM_BINS
        at = np.minimum(place.astype(np.int64), _NUM_BINS - 1)
        weights = (np.ones(len(at)), predicted, given)
        self._sums += [np.bincount(at, each, _NUM_BINS) for each in weights]

    def groups(self, max_groups: int = 20) -> list[CalibrationGroup]:
        """Returns groups of about equally many samples, by ascending prediction."""
        counts, predicted, observed = self._sums
        total = counts.sum()
        if not total:
            return []
        # The group of a bin follows from the samples up to the middle of the bin.
        middle = (np.cumsum(counts) - counts / 2) / total
        group = np.minimum((middle * max_groups).astype(np.int64), max_groups - 1)
        sums = [np.bincount(group, each, max_groups) for each in (counts, predicted, observed)]
        return [
            CalibrationGroup(int(count), float(mean / count), float(rate / count))
            for count, mean, rate in zip(*sums, strict=True)
            if count
        ]
