"""The models that `sparring train` knows: `Dlrm` and `MatrixFactorization`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from sparring.adapter import (
    StepContainer,
    StorageLike,
    check_factors,
    dot_product_dim,
    dot_product_pairs,
    shared_settings,
)
from sparring.contracts import TableConfig
from sparring_torch.embedding import Embedding
from sparring_torch.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.table_configs import EmbeddingBagConfig

__all__ = ["Dlrm", "MatrixFactorization"]


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

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Predicted ratings ``(b,)`` for ids ``(b,)`` each."""
        return self._predicted(self.users(users), self.items(items))

    def loss(
        self,
        users: Tensor,
        items: Tensor,
        ratings: Tensor,
        *,
        embedding_l2: float,
        bias_l2: float,
    ) -> Tensor:
        """Sum over the ratings of the squared error and of the penalties on what it met.

        Args:
            users: ids ``(b,)``.
            items: ids ``(b,)``.
            ratings: ``(b,)``.
            embedding_l2: weight of the squared vectors of a rating's user and item.
            bias_l2: weight of their squared biases.
        """
        user_rows, item_rows = self.users(users), self.items(items)
        error = self._predicted(user_rows, item_rows) - ratings
        squares = user_rows.square() + item_rows.square()
        penalty = bias_l2 * squares[:, 0] + embedding_l2 * squares[:, 1:].sum(1)
        total: Tensor = (error.square() + penalty).sum()
        return total

    def _predicted(self, user_rows: Tensor, item_rows: Tensor) -> Tensor:
        biases = user_rows[:, 0] + item_rows[:, 0]
        assert isinstance(self.mean, Tensor)
        return self.mean + biases + (user_rows[:, 1:] * item_rows[:, 1:]).sum(1)


class Dlrm(nn.Module):
    """Deep learning recommendation model: Naumov et al., arXiv 1906.00091 (2019).

    ::

        integers (b, k) ──► bottom MLP ──► (b, dim) ──┬─► dot products ─┬─► top MLP ──► logit
        ids of f features ──► tables ──► (b, f, dim) ─┘   of all pairs  │
                              bottom MLP's output ──────────────────────┘

    Args:
        tables: one for each feature, all of one dim.
        num_integers: k.
        bottom_mlp: widths of the hidden layers over the integers; a last one of `dim` is added.
        top_mlp: widths of the hidden layers over the products; a last one of 1 is added.
        storage: what keeps the tables.
        container: where they live; None leaves it to the `Optimizer`.

    Raises:
        InvalidArgumentError: the tables differ in dim.
    """

    def __init__(
        self,
        tables: Sequence[TableConfig],
        *,
        num_integers: int,
        bottom_mlp: Sequence[int],
        top_mlp: Sequence[int],
        storage: StorageLike = "hkv",
        container: StepContainer | None = None,
    ) -> None:
        super().__init__()
        self._dim = dot_product_dim(tables)
        self.embeddings = EmbeddingBagCollection(
            [
                EmbeddingBagConfig(
                    name=table.name,
                    embedding_dim=table.dim,
                    data_type=table.dtype,
                    **shared_settings(table),
                )
                for table in tables
            ],
            storage=storage,
            container=container,
        )
        self.bottom = _mlp([num_integers, *bottom_mlp, self._dim], is_last_activated=True)
        pairs = torch.from_numpy(dot_product_pairs(len(tables) + 1))
        self.top = _mlp([self._dim + len(pairs), *top_mlp, 1], is_last_activated=False)
        self.register_buffer("_pairs", pairs, persistent=False)

    def forward(self, integers: Tensor, ids: KeyedJaggedTensor) -> Tensor:
        """Logits ``(b,)``.

        Args:
            integers: ``(b, k)``, scaled to the order of 1.
            ids: the features, a bag of one id for each example.
        """
        bottom = self.bottom(integers)
        pooled = self.embeddings(ids).values().to(bottom.dtype)
        joined = torch.cat([bottom, pooled], dim=1)
        # The number is given, because a batch may be empty on this rank.
        vectors = joined.view(len(bottom), joined.shape[1] // self._dim, self._dim)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        assert isinstance(self._pairs, Tensor)
        logits: Tensor = self.top(torch.cat([bottom, products[:, self._pairs]], dim=1))
        return logits.squeeze(1)


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


def _mlp(widths: Sequence[int], *, is_last_activated: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for below, above in pairwise(widths):
        layers += [nn.Linear(below, above), nn.ReLU()]
    return nn.Sequential(*(layers if is_last_activated else layers[:-1]))
