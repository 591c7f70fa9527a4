"""Biased matrix factorization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sparring import StepContainer
from sparring.adapter import StorageLike, check_factors, shared_settings
from sparring.contracts import TableConfig
from sparring_torch.modules.embedding import Embedding

__all__ = ["MatrixFactorization"]


class MatrixFactorization(nn.Module):
    """Biased matrix factorization: mean + user bias + item bias + user · item.

    Koren, Bell, Volinsky: "Matrix factorization techniques for recommender systems", Computer
    42(8), 2009. The first column of a row is the bias, so biases need no tables of their own.

    Args:
        users: table of users; its dim is the number of factors, plus 1 for the bias.
        items: table of items with the same dim.
        mean: mean of the training ratings.
        storage: storage of the tables.
        container: container of the tables; None leaves the choice to the `Optimizer`.

    Raises:
        InvalidArgumentError: the tables differ in dim or dtype, or their dim is too small.

    Examples:
        >>> import torch
        >>> from sparring import TableConfig
        >>> from sparring_torch import MatrixFactorization
        >>> users, items = TableConfig("user", dim=5), TableConfig("item", dim=5)
        >>> model = MatrixFactorization(users, items, mean=3.5)
        >>> model(torch.tensor([1, 2]), torch.tensor([7, 7])).shape
        torch.Size([2])
    """

    def __init__(
        self,
        users: TableConfig,
        items: TableConfig,
        *,
        mean: float,
        storage: StorageLike = "hkv",
        container: StepContainer | None = None,
    ) -> None:
        super().__init__()
        check_factors(users, items)
        self.users = _embedding(users, storage, container)
        self.items = _embedding(items, storage, container)
        # A buffer, so that snapshots contain it, and predictions do not need the training data.
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # States of older releases have no mean. The model keeps its own, which comes from the same
        # ratings.
        state_dict.setdefault(f"{prefix}mean", self.mean)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Returns predicted ratings ``(b,)``.

        Args:
            users: ``(b,)`` ids of users.
            items: ``(b,)`` ids of items.
        """
        return self._predict(self.users(users), self.items(items))

    def loss(
        self,
        users: Tensor,
        items: Tensor,
        ratings: Tensor,
        *,
        embedding_l2: float,
        bias_l2: float,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Returns the loss: squared errors plus L2 penalties, summed over all ratings.

        A rating's penalties depend on the rows of its user and its item.

        Args:
            users: user ids ``(b,)``.
            items: item ids ``(b,)``.
            ratings: ratings ``(b,)``.
            embedding_l2: L2 penalty of the user's and the item's vectors, without biases.
            bias_l2: L2 penalty of their biases.
            weights: weights ``(b,)`` of the ratings and their penalties; None means 1.
        """
        user_rows, item_rows = self.users(users), self.items(items)
        error = self._predict(user_rows, item_rows) - ratings
        squares = user_rows.square() + item_rows.square()
        penalty = bias_l2 * squares[:, 0] + embedding_l2 * squares[:, 1:].sum(1)
        each: Tensor = error.square() + penalty
        return (each if weights is None else each * weights).sum()

    def _predict(self, user_rows: Tensor, item_rows: Tensor) -> Tensor:
        biases = user_rows[:, 0] + item_rows[:, 0]
        assert isinstance(self.mean, Tensor)
        return self.mean + biases + (user_rows[:, 1:] * item_rows[:, 1:]).sum(1)


def _embedding(
    table: TableConfig, storage: StorageLike, container: StepContainer | None
) -> Embedding:
    return Embedding(
        table.dim,
        name=table.name,
        dtype=getattr(torch, table.dtype),
        storage=storage,
        container=container,
        **shared_settings(table),
    )
