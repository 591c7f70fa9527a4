"""Data of kind `movielens`: a part of the ratings is held out, the rest is trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sparring.errors import DataError
from sparring_train.config.data import MovieLensData
from sparring_train.data.batches import RatingBatch, shuffled_batches
from sparring_train.data.columns import Column, ColumnBatch, Schema
from sparring_train.data.dataset import LabelRange, OpenRequest
from sparring_train.data.movielens import read_ratings
from sparring_train.data.split import split_ratings

__all__ = ["RatingDataset", "read_examples"]


class RatingDataset:
    """Ratings of one file, in memory; each epoch has an order of its own.

    Raises:
        DataError: the file is missing or malformed, or has too few ratings to split.
    """

    def __init__(self, data: MovieLensData, request: OpenRequest) -> None:
        self.schema: Schema = data.columns
        self._seed = request.seed % 2**64
        self._batch_size = data.batch_size
        split = split_ratings(
            read_ratings(data.path),
            test_fraction=data.test_fraction,
            validation_fraction=data.validation_fraction or 0.0,
            seed=self._seed,
        )
        self._train, self._test, self._validation = split.train, split.test, split.validation
        if data.has_validation and not len(split.validation):
            raise DataError(
                f"{data.path}: found too few ratings to keep data.validation_fraction="
                f"{data.validation_fraction} of them for validation; raise it, or leave it out",
                path=data.path,
            )
        if not len(split.train) or not len(split.test):
            raise DataError(
                f"{data.path}: found {len(split.train) + len(split.test)} ratings, too few to hold "
                f"out data.test_fraction={data.test_fraction} and train on the rest",
                path=data.path,
            )

    @property
    def steps_per_epoch(self) -> int | None:
        return -(-len(self._train) // self._batch_size)

    @property
    def label_range(self) -> LabelRange:
        ratings = self._train.ratings
        return LabelRange(float(ratings.mean()), float(ratings.min()), float(ratings.max()))

    def batches(self, epoch: int) -> Iterator[ColumnBatch]:
        """All training ratings once."""
        return map(
            _columns, shuffled_batches(self._train, self._batch_size, seed=self._seed, epoch=epoch)
        )

    def test_batches(self) -> Iterator[ColumnBatch]:
        """All test ratings, in one batch."""
        yield _columns(self._test)

    def validation_batches(self) -> Iterator[ColumnBatch]:
        """All ratings for validation, in one batch."""
        yield _columns(self._validation)

    def extra(self) -> Mapping[str, Any]:
        """Nothing: the best RMSE that can be reached is unknown."""
        return {}


def _columns(batch: RatingBatch) -> ColumnBatch:
    ids = {"user": Column(batch.users), "item": Column(batch.items)}
    return ColumnBatch(ids, numbers=np.empty((len(batch), 0), np.float32), labels=batch.ratings)


def read_examples(data: MovieLensData, path: str) -> Iterator[ColumnBatch]:  # noqa: ARG001 - as all kinds have it
    """All ratings of another file, in its order.

    Raises:
        DataError: the file is missing or malformed.
    """
    yield _columns(read_ratings(path))
