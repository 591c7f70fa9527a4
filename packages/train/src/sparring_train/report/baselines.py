"""Baselines: metrics of predictions without a model, for comparison with the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring_train.columns import Column, ColumnBatch
from sparring_train.quality.predictions import Quality
from sparring_train.report.run_data import Baseline
from sparring_train.run.ranks import Ranks

__all__ = ["Baselines"]

_MAX_FEATURES = 2
_WEIGHT_OF_MEAN = 10.0
"""Number of labels with the overall mean that are added to an id's labels, which smooths rare ids."""

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]


class Baselines:
    """Predicts test labels by the mean of all training labels, and by the mean per id of a feature.

    Uses two of the features with at most one id per sample: those with the most distinct ids in the
    first batch. A feature with more than `max_ids` ids is left out. All ranks create one and make the
    same calls.

    Args:
        features: features with at most one id per sample.
        make: creates empty metrics for a baseline.
        ranks: ranks of the run.
        max_ids: maximum number of distinct ids of a feature, 24 bytes each.
    """

    def __init__(
        self,
        features: Sequence[str],
        make: Callable[[], Quality],
        ranks: Ranks,
        *,
        max_ids: int = 1 << 20,
    ) -> None:
        self._features, self._make, self._ranks, self._max_ids = features, make, ranks, max_ids
        self._sums: dict[str, _Sums] = {}
        self._total = np.zeros(2)
        self._are_parts = False
        self._measured: dict[str, Quality] = {}

    def on_training_batch(self, batch: ColumnBatch) -> None:
        """Adds the labels of a batch of the first epoch."""
        if batch.labels is None:
            return
        if not self._sums:
            self._choose(batch)
        labels = batch.labels.astype(np.float64)
        self._total += labels.sum(), len(labels)
        for feature, sums in self._sums.items():
            column = batch.ids[feature]
            sums.add(column.ids, labels[column.counts.astype(np.bool_)])

    def begin(self) -> None:
        """Ends the training phase; test samples follow."""
        if self._are_parts:
            self._total = self._ranks.sum(self._total)
            for sums in self._sums.values():
                sums.join(self._ranks)
        self._sums = {
            feature: sums for feature, sums in self._sums.items() if len(sums.ids) <= self._max_ids
        }
        names = ["the mean", *(f"the mean of each {feature}" for feature in self._sums)]
        self._measured = {name: self._make() for name in names if self._total[1]}

    def on_test_batch(self, batch: ColumnBatch, _: Floats, labels: Floats) -> None:
        """Adds the baselines' predictions for a batch to their metrics.

        Args:
            batch: whole batch, or this rank's part of it.
            labels: ``(b,)``, of the whole batch.
        """
        if not self._measured:
            return
        mean = float(self._total[0] / self._total[1])
        constant = np.full(len(labels), mean)
        predicted = [constant]
        for feature, sums in self._sums.items():
            column = batch.ids[feature]
            ids, lengths = column.ids, column.lengths
            if self._are_parts:
                ids = self._ranks.gathered(ids)
                lengths = None if lengths is None else self._ranks.gathered(lengths)
            values = constant.copy()
            has_id = Column(ids, lengths).counts.astype(np.bool_)
            values[has_id] = sums.means(ids, mean)
            predicted.append(values)
        if self._ranks.is_first:
            for quality, values in zip(self._measured.values(), predicted, strict=True):
                quality.update(values, labels)

    def baselines(self) -> list[Baseline]:
        """Returns the results, on the first rank."""
        return [
            Baseline(name=name, metrics=quality.metrics())
            for name, quality in self._measured.items()
        ]

    def _choose(self, batch: ColumnBatch) -> None:
        self._are_parts = self._ranks.world_size > 1 and batch.total is not None
        distinct = {name: len(np.unique(batch.ids[name].ids)) for name in self._features}
        if self._are_parts:
            distinct = self._ranks.total(distinct)
        by_size = sorted(self._features, key=lambda name: -distinct[name])
        chosen = set(by_size[:_MAX_FEATURES])
        self._sums = {name: _Sums(self._max_ids) for name in self._features if name in chosen}


class _Sums:
    """Sum and number of labels per id. Stops adding when there are more than `max_ids` ids."""

    def __init__(self, max_ids: int) -> None:
        self._max_ids = max_ids
        self.ids: Ids = np.empty(0, np.int64)
        self._sums: Floats = np.empty(0)
        self._counts: Floats = np.empty(0)

    def add(self, ids: Ids, labels: Floats) -> None:
        if len(self.ids) <= self._max_ids:
            self._take(
                np.concatenate([self.ids, ids]),
                np.concatenate([self._sums, labels]),
                np.concatenate([self._counts, np.ones(len(ids))]),
            )

    def join(self, ranks: Ranks) -> None:
        """Combines the sums of all ranks."""
        self._take(*(ranks.gathered(each) for each in (self.ids, self._sums, self._counts)))

    def means(self, ids: Ids, mean: float) -> Floats:
        """Returns the smoothed mean of each id, which is close to `mean` for ids with few labels."""
        sums, counts = np.zeros(len(ids)), np.zeros(len(ids))
        at = np.minimum(np.searchsorted(self.ids, ids), max(len(self.ids) - 1, 0))
        if len(self.ids):
            is_known = self.ids[at] == ids
            sums[is_known], counts[is_known] = self._sums[at[is_known]], self._counts[at[is_known]]
        means: Floats = (sums + _WEIGHT_OF_MEAN * mean) / (counts + _WEIGHT_OF_MEAN)
        return means

    def _take(self, ids: Ids, sums: Floats, counts: Floats) -> None:
        self.ids, places = np.unique(ids, return_inverse=True)
        self._sums = np.bincount(places, sums, len(self.ids))
        self._counts = np.bincount(places, counts, len(self.ids))
