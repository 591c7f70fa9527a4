"""Metrics of slices of the test samples: with new, rare and frequent ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring_train.columns import Column, ColumnBatch
from sparring_train.quality.predictions import Quality
from sparring_train.report.id_counts import IdCounts
from sparring_train.report.run_data import NEW_IDS, Slice
from sparring_train.run.ranks import Ranks

__all__ = ["SliceMetrics"]

_MAX_FEATURES = 2

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Band:
    """Ids within a range of frequencies in the training."""

    name: str
    met: str
    min_count: int
    max_count: float = float("inf")


_BANDS = (
    _Band(NEW_IDS, "never", 0, 0),
    _Band("known ids", "at least once", 1),
    _Band("rare ids", "1 to 9 times", 1, 9),
    _Band("ids in between", "10 to 99 times", 10, 99),
    _Band("frequent ids", "100 times or more", 100),
)


class SliceMetrics:
    """Counts ids during training, and measures predictions by the frequencies of ids.

    Uses two of the features with one id per sample: those with the most distinct ids in the first batch.
    All ranks create one and make the same calls.

    Args:
        features: features with at most one id per sample.
        make: creates empty metrics for a slice.
        ranks: ranks of the run.
        max_ids: maximum number of distinct ids of a feature to count; see `IdCounts`.
    """

    def __init__(
        self,
        features: Sequence[str],
        make: Callable[[], Quality],
        ranks: Ranks,
        *,
        max_ids: int = 1 << 20,
    ) -> None:
        self._features, self._make, self._ranks = features, make, ranks
        self._max_ids = max_ids
        self._counts: dict[str, IdCounts] = {}
        self._are_parts = False
        self._measured: dict[str, list[tuple[int, Quality]]] = {}
        self.is_measured = False
        """Whether `begin` was called."""

    def on_training_batch(self, batch: ColumnBatch) -> None:
        """Counts the ids of a batch of the first epoch."""
        if not self._counts:
            self._choose(batch)
        for feature, counts in self._counts.items():
            counts.add(batch.ids[feature].ids)

    def begin(self) -> None:
        """Ends the training phase; test samples follow."""
        self.is_measured = True
        if self._are_parts:
            self._counts = {
                feature: self._joined(counts) for feature, counts in self._counts.items()
            }
        self._measured = {feature: [(0, self._make()) for _ in _BANDS] for feature in self._counts}

    def on_test_batch(self, batch: ColumnBatch, predictions: Floats, labels: Floats) -> None:
        """Adds the predictions for a batch to the metrics.

        Args:
            batch: whole batch, or this rank's part of it.
            predictions: ``(b,)``, of the whole batch.
            labels: ``(b,)``, of the whole batch.
        """
        for feature, measured in self._measured.items():
            counts = self._of_samples(feature, batch)
            if not self._ranks.is_first:
                continue
            for place, band in enumerate(_BANDS):
                is_in = (counts >= band.min_count) & (counts <= band.max_count)
                num_samples, quality = measured[place]
                if is_in.any():
                    quality.update(predictions[is_in], labels[is_in])
                    measured[place] = (num_samples + int(is_in.sum()), quality)

    def slices(self) -> list[Slice]:
        """Returns the results on the first rank, except slices without samples."""
        return [
            Slice(
                feature=feature,
                name=band.name,
                met=band.met,
                num_samples=num_samples,
                metrics=quality.metrics(),
                one_in=self._counts[feature].one_in,
            )
            for feature, measured in self._measured.items()
            for band, (num_samples, quality) in zip(_BANDS, measured, strict=True)
            if num_samples
        ]

    def _choose(self, batch: ColumnBatch) -> None:
        self._are_parts = self._ranks.world_size > 1 and batch.total is not None
        distinct = {name: len(np.unique(batch.ids[name].ids)) for name in self._features}
        if self._are_parts:
            distinct = self._ranks.total(distinct)
        by_size = sorted(self._features, key=lambda name: -distinct[name])
        chosen = set(by_size[:_MAX_FEATURES])
        self._counts = {name: IdCounts(self._max_ids) for name in self._features if name in chosen}

    def _joined(self, counts: IdCounts) -> IdCounts:
        ids, times, one_in = counts.parts()
        all_ids, all_times = self._ranks.gathered(ids), self._ranks.gathered(times)
        one_in = self._ranks.largest(one_in)
        return IdCounts.joined([(all_ids, all_times, one_in)], self._max_ids)

    def _of_samples(self, feature: str, batch: ColumnBatch) -> Ids:
        """Returns the frequency of each sample's id; -1 if there is none, or it is not counted."""
        column = batch.ids[feature]
        ids, lengths = column.ids, column.lengths
        if self._are_parts:
            ids = self._ranks.gathered(ids)
            lengths = None if lengths is None else self._ranks.gathered(lengths)
        whole = Column(ids, lengths)
        counts = np.full(len(whole), -1, np.int64)
        counts[np.flatnonzero(whole.counts)] = self._counts[feature].of(ids)
        return counts
