"""Ratings: a part is held out, and the rest is trained on in an order of each epoch's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import StorageChoice
from sparring.contracts import TableConfig, Uniform
from sparring.errors import DataError
from sparring_train.config.data import MovieLensData
from sparring_train.config.model import MatrixFactorizationModel
from sparring_train.config.run import RunConfig
from sparring_train.data.batches import RatingBatch, shuffled_batches
from sparring_train.data.movielens import read_ratings
from sparring_train.data.split import split_ratings
from sparring_train.loop.model import Predict
from sparring_train.quality import rmse
from sparring_train.ranks import Ranks

__all__ = ["RatingSource"]


class RatingSource:
    """Reads a file of ratings, and says what tables a matrix factorisation of them needs.

    Args:
        config: the run; `data` is of kind movielens, `model` of kind matrix_factorization.

    Raises:
        DataError: the file is missing or malformed, or has too few ratings to split.
    """

    def __init__(self, config: RunConfig) -> None:
        data, model = config.data, config.model
        assert isinstance(data, MovieLensData)
        assert isinstance(model, MatrixFactorizationModel)
        self._seed = config.seed % 2**64
        self._batch_size = data.batch_size
        self.storage = StorageChoice(config.storage.backend, config.storage.options)
        self.embedding_l2, self.bias_l2 = model.embedding_l2, model.bias_l2
        split = split_ratings(
            read_ratings(data.path), test_fraction=data.test_fraction, seed=self._seed
        )
        self._train, self._test = split.train, split.test
        if not len(split.train) or not len(split.test):
            raise DataError(
                f"{data.path}: found {len(split.train) + len(split.test)} ratings, too few to hold "
                f"out data.test_fraction={data.test_fraction} and train on the rest",
                path=data.path,
            )
        self._bounds = float(split.train.ratings.min()), float(split.train.ratings.max())
        self.mean = float(split.train.ratings.mean())
        self.users, self.items = (
            config.tables.table_config(
                TableConfig(name, model.row_dim, initializer=Uniform(-0.05, 0.05), seed=config.seed)
            )
            for name in ("user", "item")
        )

    @property
    def steps_per_epoch(self) -> int | None:
        return -(-len(self._train) // self._batch_size)

    def batches(self, epoch: int) -> Iterator[RatingBatch]:
        """All training ratings once, in an order of the epoch's own."""
        return shuffled_batches(self._train, self._batch_size, seed=self._seed, epoch=epoch)

    def evaluate(self, predict: Predict, ranks: Ranks) -> dict[str, float]:
        """Root mean squared error on the test ratings, predictions held within the scale."""
        predicted = predict(ranks.part(self._test)).clip(*self._bounds)
        return {"rmse": rmse(ranks.gathered(predicted), self._test.ratings)}

    def ids(self, batch: RatingBatch) -> dict[str, npt.NDArray[np.int64]]:
        """Feature → its ids."""
        return {"user": batch.users, "item": batch.items}

    def extra(self) -> dict[str, Any]:
        """Nothing: the best RMSE that can be reached is unknown."""
        return {}
