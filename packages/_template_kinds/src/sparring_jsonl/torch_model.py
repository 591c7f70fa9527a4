"""The factorization machine as a PyTorch module."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from sparring_torch import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from sparring_train import ModelRequest

__all__ = ["FactorizationMachine"]


class FactorizationMachine(nn.Module):
    """Computes the logits of clicks.

    ::

        numbers (b, k) ──► linear ───────────────────────────────┐
        ids ──► tables ──► (b, f, dim + 1) ──► sum of weights ───┼──► + ──► (b,)
                                          └──► sum of products ──┘
    """

    def __init__(self, request: ModelRequest) -> None:
        super().__init__()
        features = request.schema.features
        tables = [
            replace(
                EmbeddingBagConfig.of(table),
                feature_names=[each.name for each in features if each.table_name == name],
            )
            for name, table in request.tables.items()
        ]
        self.embeddings = EmbeddingBagCollection(
            tables, storage=request.storage, container=request.container
        )
        self._width = request.section.dim + 1
        count = len(request.schema.numbers)
        self.numbers = nn.Linear(count, 1) if count else None

    def forward(self, numbers: Tensor, features: KeyedJaggedTensor) -> Tensor:
        """Returns logits ``(b,)`` for numbers ``(b, k)`` and the ids of all features."""
        rows = self.embeddings(features).values().unflatten(1, (-1, self._width))
        vectors, weights = rows[..., :-1], rows[..., -1]
        # The sum over pairs equals half the square of the sum minus the sum of squares.
        products = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        logits: Tensor = weights.sum(1) + products
        return logits if self.numbers is None else logits + self.numbers(numbers).squeeze(1)
