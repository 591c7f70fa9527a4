"""Data of kind `synthetic_criteo`: a click log that is generated from a known model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from sparring_train.columns import Column, ColumnBatch, Schema
from sparring_train.config.sections.data import SyntheticCriteoData
from sparring_train.data.batches import ClickBatch, rebatch
from sparring_train.data.dataset import OpenRequest
from sparring_train.data.planted_model import PlantedModel
from sparring_train.quality.predictions import auc, log_loss

__all__ = ["SyntheticClickDataset"]

_EVALUATION_BATCH_SIZE = 8192


class SyntheticClickDataset:
    """A click log that is generated from a known model, in chunks."""

    label_range = None

    def __init__(self, data: SyntheticCriteoData, request: OpenRequest) -> None:
        self.schema: Schema = data.columns
        self._data = data
        self._planted = PlantedModel(
            seed=request.seed,
            skew=data.skew,
            max_ids=data.max_ids,
            missing_fraction=data.missing_fraction,
        )
        self._test = list(self._planted.chunks(data.test_samples, "test"))

    @property
    def steps_per_epoch(self) -> int | None:
        return -(-self._data.samples // self._data.batch_size)

    def batches(self, epoch: int) -> Iterator[ColumnBatch]:
        """Yields the training rows, which are the same in every epoch."""
        chunks = self._planted.chunks(self._data.samples, "train")
        clicks = rebatch((chunk.batch for chunk in chunks), self._data.batch_size)
        return (_columns(batch, self.schema) for batch in clicks)

    def test_batches(self) -> Iterator[ColumnBatch]:
        """Yields the test rows."""
        clicks = rebatch((chunk.batch for chunk in self._test), _EVALUATION_BATCH_SIZE)
        return (_columns(batch, self.schema) for batch in clicks)

    def validation_batches(self) -> Iterator[ColumnBatch]:
        """Yields the validation rows. They are generated again by each call."""
        chunks = self._planted.chunks(self._data.validation_samples or 0, "validation")
        clicks = rebatch((chunk.batch for chunk in chunks), _EVALUATION_BATCH_SIZE)
        return (_columns(batch, self.schema) for batch in clicks)

    def extra(self) -> Mapping[str, Any]:
        """Returns ``best_auc`` and ``best_log_loss``, the metrics of the model that generated the log."""
        return self._best

    @cached_property
    def _best(self) -> dict[str, float]:
        probabilities = np.concatenate([chunk.probabilities for chunk in self._test])
        labels = np.concatenate([chunk.labels for chunk in self._test])
        return {
            "best_auc": auc(probabilities, labels),
            "best_log_loss": log_loss(probabilities, labels),
        }


def _columns(batch: ClickBatch, schema: Schema) -> ColumnBatch:
    # The ids of each feature must be contiguous.
    by_feature = np.ascontiguousarray(batch.ids.T)
    names = (feature.name for feature in schema.features)
    ids = {name: Column(each) for name, each in zip(names, by_feature, strict=True)}
    return ColumnBatch(ids, numbers=batch.dense, labels=batch.labels)
