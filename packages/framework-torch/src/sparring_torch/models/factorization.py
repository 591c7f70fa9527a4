"""Biased matrix factorisation."""

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
    """Biased matrix factorisation: mean + user bias + item bias + user · item.

    Koren, Bell, Volinsky: "Matrix factorization techniques for recommender systems", Computer
    42(8), 2009. The bias is the first column of a row, so each table has one row an id.

    Args:
        users: table of users; its dim is 1 for the bias and the elements of a vector.
        items: table of items, of the same dim.
        mean: of the ratings that will be trained on.
        storage: what keeps the tables.
        container: where they live; None leaves it to the `Optimizer`.

    Raises:
        InvalidArgumentError: the tables differ in dim or dtype, or have no room for a vector.
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
        # A buffer, so that a snapshot has it: predictions need no data that was trained on.
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # Until it was a buffer, states had no mean: the model's own, of the same ratings, holds.
        state_dict.setdefault(f"{prefix}mean", self.mean)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Predicted ratings ``(b,)`` for ids ``(b,)`` each."""
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
        """Sum over the ratings of the squared error and of the penalties on what it met.

        Args:
            users: ids ``(b,)``.
            items: ids ``(b,)``.
            ratings: ``(b,)``.
            embedding_l2: weight of the squared vectors of a rating's user and item.
            bias_l2: weight of their squared biases.
            weights: of the ratings, with their penalties, ``(b,)``; None: 1 each.
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
