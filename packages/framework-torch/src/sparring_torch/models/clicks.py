"""Batches of clicks, embeddings of a batch, and `DeepFM`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.models.layers import MLP, DenseArch, find_common_dim
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection

__all__ = ["Batch", "DeepFM", "SparseArch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of labeled examples."""

    dense_features: Tensor
    """``(b, k)``, scaled to a magnitude of about 1."""
    sparse_features: KeyedJaggedTensor
    """Bags of ids with stride b."""
    labels: Tensor
    """``(b,)``, 0 or 1."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Returns the batch on another device."""
        return Batch(
            self.dense_features.to(device, non_blocking=non_blocking),
            self.sparse_features.to(device, non_blocking=non_blocking),
            self.labels.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> Batch:
        """Returns the batch in page-locked memory."""
        return Batch(
            self.dense_features.pin_memory(),
            self.sparse_features.pin_memory(),
            self.labels.pin_memory(),
        )


class SparseArch(nn.Module):
    """Returns pooled embeddings of all features: a `KeyedJaggedTensor` → ``(b, f, dim)``."""

    def __init__(
        self, embedding_bag_collection: EmbeddingBagCollection, model: str = "SparseArch"
    ) -> None:
        super().__init__()
        self.num_features, self.dim = find_common_dim(embedding_bag_collection, model)
        self.embedding_bag_collection = embedding_bag_collection

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        pooled: Tensor = self.embedding_bag_collection(features).values()
        # Not -1, because a batch may be empty on this rank. An export would make len() a constant.
        return pooled.view(pooled.shape[0], self.num_features, self.dim)


class DeepFM(nn.Module):
    """Factorization machine and deep layers with shared embeddings: Guo et al., arXiv 1703.04247.

    TorchRec's `SimpleDeepFMNN`::

        dense features (b, k) ──► dense arch ──► (b, dim) ┬─► deep (b, deep_fm_dimension) ─┬─► click
        ids of f features ──► tables ──► (b, f, dim) ─────┴─► products of all pairs (b, 1) ┤
                              dense arch's output ─────────────────────────────────────────┘

    Args:
        num_dense_features: number k of dense features.
        embedding_bag_collection: tables of equal dim with f features.
        hidden_layer_size: width of the hidden layer for dense features.
        deep_fm_dimension: width of the deep network's output.

    Raises:
        InvalidArgumentError: the tables differ in dim.

    Examples:
        >>> import torch
        >>> from sparring_torch import DeepFM, EmbeddingBagCollection, EmbeddingBagConfig
        >>> from sparring_torch import KeyedJaggedTensor
        >>> tables = EmbeddingBagCollection([EmbeddingBagConfig(name="items", embedding_dim=4)])
        >>> model = DeepFM(3, tables, hidden_layer_size=8, deep_fm_dimension=2)
        >>> ids = KeyedJaggedTensor(["items"], [5, 6, 7], lengths=[2, 1])
        >>> model(torch.zeros(2, 3), ids).shape
        torch.Size([2, 1])
    """

    def __init__(
        self,
        num_dense_features: int,
        embedding_bag_collection: EmbeddingBagCollection,
        hidden_layer_size: int,
        deep_fm_dimension: int,
    ) -> None:
        super().__init__()
        self.sparse_arch = SparseArch(embedding_bag_collection, "DeepFM")
        dim, vectors = self.sparse_arch.dim, self.sparse_arch.num_features + 1
        self.dense_arch = DenseArch(num_dense_features, [hidden_layer_size, dim])
        self.deep = MLP(vectors * dim, [deep_fm_dimension])
        self.over_arch = nn.Sequential(nn.Linear(dim + deep_fm_dimension + 1, 1), nn.Sigmoid())

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Returns probabilities of a click ``(b, 1)``; use `binary_cross_entropy` as loss.

        Args:
            dense_features: ``(b, k)``, scaled to a magnitude of about 1.
            sparse_features: bags of ids of the f features.
        """
        return self.logits(dense_features, sparse_features).sigmoid()

    def logits(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Returns the logits ``(b, 1)``.

        `dense_features` and `sparse_features` are the arguments of `forward`.
        """
        dense = self.dense_arch(dense_features)
        embedded = self.sparse_arch(sparse_features).to(dense.dtype)
        everything = torch.cat([dense, embedded.flatten(1)], dim=1)
        squares = everything.square().sum(1, keepdim=True)
        products = (everything.sum(1, keepdim=True).square() - squares) / 2
        parts = torch.cat([dense, self.deep(everything), products], dim=1)
        logits: Tensor = self.over_arch[0](parts)
        return logits
