"""Interactions of DLRMs: combine the vector of dense features with embeddings.

Inputs are ``(b, dim)`` and ``(b, f, dim)``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["InteractionArch", "InteractionDCNArch", "InteractionProjectionArch"]


class InteractionArch(nn.Module):
    """Concatenates the vector of dense features and the dot products of all pairs of f + 1 vectors.

    ``(b, dim)``, ``(b, f, dim)`` → ``(b, dim + f * (f + 1) / 2)``.

    Args:
        num_sparse_features: number f of features with embeddings.
        device: device of the indices of the pairs.
    """

    def __init__(self, num_sparse_features: int, device: torch.device | str | None = None) -> None:
        super().__init__()
        vectors = num_sparse_features + 1
        pairs = torch.triu_indices(vectors, vectors, offset=1, device=device)
        self.num_pairs = pairs.shape[1]
        self.register_buffer("_pairs", pairs[0] * vectors + pairs[1], persistent=False)

    def forward(self, dense_features: Tensor, sparse_features: Tensor) -> Tensor:
        vectors = torch.cat([dense_features.unsqueeze(1), sparse_features], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        assert isinstance(self._pairs, Tensor)
        return torch.cat([dense_features, products[:, self._pairs]], dim=1)


class InteractionDCNArch(nn.Module):
    """Applies a cross network to the concatenated f + 1 vectors.

    ``(b, dim)``, ``(b, f, dim)`` → ``(b, (f + 1) * dim)``.

    Args:
        num_sparse_features: number f of features with embeddings.
        crossnet: a network for ``(f + 1) * dim`` features, for example `LowRankCrossNet`.
    """

    def __init__(self, num_sparse_features: int, crossnet: nn.Module) -> None:
        super().__init__()
        self.num_sparse_features = num_sparse_features
        self.crossnet = crossnet

    def forward(self, dense_features: Tensor, sparse_features: Tensor) -> Tensor:
        vectors = torch.cat([dense_features.unsqueeze(1), sparse_features], dim=1)
        crossed: Tensor = self.crossnet(vectors.flatten(1))
        return crossed


class InteractionProjectionArch(nn.Module):
    """Concatenates the vector of dense features and the dot products between two projections.

    ``(b, dim)``, ``(b, f, dim)`` → ``(b, dim + m * n)``, if the branches project to m and n vectors.

    Args:
        num_sparse_features: number f of features with embeddings.
        interaction_branch1: ``(b, (f + 1) * dim)`` → ``(b, m * dim)``.
        interaction_branch2: ``(b, (f + 1) * dim)`` → ``(b, n * dim)``.
    """

    def __init__(
        self,
        num_sparse_features: int,
        interaction_branch1: nn.Module,
        interaction_branch2: nn.Module,
    ) -> None:
        super().__init__()
        self.num_sparse_features = num_sparse_features
        self.interaction_branch1 = interaction_branch1
        self.interaction_branch2 = interaction_branch2

    def forward(self, dense_features: Tensor, sparse_features: Tensor) -> Tensor:
        num_examples, dim = dense_features.shape
        vectors = torch.cat([dense_features.unsqueeze(1), sparse_features], dim=1).flatten(1)
        # Not -1, because a batch may be empty on this rank.
        left = self.interaction_branch1(vectors)
        right = self.interaction_branch2(vectors)
        products = torch.bmm(
            left.view(num_examples, left.shape[1] // dim, dim),
            right.view(num_examples, dim, right.shape[1] // dim),
        )
        return torch.cat([dense_features, products.flatten(1)], dim=1)
