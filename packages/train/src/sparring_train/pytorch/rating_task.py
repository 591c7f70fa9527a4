"""Training on ratings: `MatrixFactorization` on MovieLens."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparring import StepContainer
from sparring_torch import MatrixFactorization, tables_device
from sparring_train.config.run import RunConfig
from sparring_train.data.batches import RatingBatch
from sparring_train.loop.rating_source import RatingSource

__all__ = ["RatingTask"]


class RatingTask:
    """The model of ratings, and its loss.

    Args:
        config: the run; `data` is of kind movielens, `model` of kind matrix_factorization.
        container: where the tables live.

    Raises:
        DataError: the file is missing or malformed, or has too few ratings to split.
    """

    def __init__(self, config: RunConfig, container: StepContainer) -> None:
        self.source = RatingSource(config)
        self.model = MatrixFactorization(
            self.source.users,
            self.source.items,
            mean=self.source.mean,
            storage=self.source.storage,
            container=container,
        )
        self.device = tables_device(self.model)

    def inputs(self, batch: RatingBatch) -> tuple[Tensor, ...]:
        """A batch as `loss` wants it."""
        arrays = batch.users, batch.items, batch.ratings
        return tuple(torch.from_numpy(each).to(self.device) for each in arrays)

    def loss(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Sum over the batch, which may be empty."""
        users, items, ratings = inputs
        source = self.source
        return self.model.loss(
            users, items, ratings, embedding_l2=source.embedding_l2, bias_l2=source.bias_l2
        )

    def program(self) -> nn.Module:
        """The model as it is exported: users and items ``(b,)`` in, ratings ``(b,)`` out."""
        return self.model

    def program_inputs(self, batch_size: int) -> tuple[Tensor, ...]:
        """An example of what the program takes."""
        ids = torch.zeros(batch_size, dtype=torch.int64)
        return ids, ids.clone()

    def predict(self, batch: RatingBatch) -> npt.NDArray[Any]:
        """Ratings."""
        users, items, _ = self.inputs(batch)
        predicted: npt.NDArray[Any] = self.model(users, items).cpu().numpy()
        return predicted
