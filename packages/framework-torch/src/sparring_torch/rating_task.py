"""Training on ratings: `MatrixFactorization` on MovieLens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparring import StepContainer, TableConfig, Uniform
from sparring.config import MatrixFactorizationModel, MovieLensData, RunConfig
from sparring.data import RatingBatch, read_ratings, shuffled_batches, split_ratings
from sparring.errors import DataError
from sparring.metrics import rmse
from sparring.ranks import Ranks
from sparring.step import StorageChoice
from sparring_torch.models import MatrixFactorization

__all__ = ["RatingTask"]


class RatingTask:
    """Reads a file of ratings, holds a part out, and trains on the rest.

    Args:
        config: the run; `data` is of kind movielens, `model` of kind matrix_factorization.
        container: where the tables live.

    Raises:
        DataError: the file is missing or malformed, or has too few ratings to split.
    """

    def __init__(self, config: RunConfig, container: StepContainer) -> None:
        data, model = config.data, config.model
        assert isinstance(data, MovieLensData)
        assert isinstance(model, MatrixFactorizationModel)
        storage = StorageChoice(config.storage.backend, config.storage.options)
        self._seed = config.seed % 2**64
        self._batch_size = data.batch_size
        self._penalties = {"embedding_l2": model.embedding_l2, "bias_l2": model.bias_l2}
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
        users, items = (
            config.tables.table_config(
                # One column more than a vector has: the bias.
                TableConfig(name, model.dim + 1, initializer=Uniform(-0.05, 0.05), seed=config.seed)
            )
            for name in ("user", "item")
        )
        self.model = MatrixFactorization(
            users,
            items,
            mean=float(split.train.ratings.mean()),
            storage=storage,
            container=container,
        )

    @property
    def steps_per_epoch(self) -> int | None:
        return -(-len(self._train) // self._batch_size)

    def batches(self, epoch: int) -> Iterator[RatingBatch]:
        """All training ratings once, in an order of the epoch's own."""
        return shuffled_batches(self._train, self._batch_size, seed=self._seed, epoch=epoch)

    def inputs(self, batch: RatingBatch) -> tuple[Tensor, ...]:
        """A batch as `loss` wants it."""
        return _tensors(batch)

    def loss(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Sum over the batch, which may be empty."""
        users, items, ratings = inputs
        return self.model.loss(users, items, ratings, **self._penalties)

    def evaluate(self, ranks: Ranks) -> dict[str, float]:
        """Root mean squared error on the test ratings, predictions held within the scale."""
        users, items, _ = _tensors(ranks.part(self._test))
        predicted = self.model(users, items).clamp(*self._bounds)
        return {"rmse": rmse(ranks.gathered(predicted.numpy()), self._test.ratings)}

    def ids(self, batch: RatingBatch) -> dict[str, npt.NDArray[np.int64]]:
        """Feature → its ids."""
        return {"user": batch.users, "item": batch.items}

    def extra(self) -> dict[str, Any]:
        """Nothing: nobody knows the best RMSE that can be reached."""
        return {}


def _tensors(batch: RatingBatch) -> tuple[Tensor, ...]:
    return tuple(map(torch.from_numpy, (batch.users, batch.items, batch.ratings)))
