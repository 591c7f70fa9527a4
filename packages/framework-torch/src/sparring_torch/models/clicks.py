"""Models that predict a click from numbers and bags of ids: `DLRM` and `DeepFM`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from sparring.errors import InvalidArgumentError
from sparring_torch.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.models.layers import mlp, one_dim

__all__ = ["DLRM", "Batch", "DLRMTrain", "DeepFM", "SparseArch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Labelled examples."""

    dense_features: Tensor
    """``(b, k)``, scaled to the order of 1."""
    sparse_features: KeyedJaggedTensor
    """Bags of ids; its stride is b."""
    labels: Tensor
    """``(b,)``, 0 or 1."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same on another device."""
        return Batch(
            self.dense_features.to(device, non_blocking=non_blocking),
            self.sparse_features.to(device, non_blocking=non_blocking),
            self.labels.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> Batch:
        """The same in page-locked memory."""
        return Batch(
            self.dense_features.pin_memory(),
            self.sparse_features.pin_memory(),
            self.labels.pin_memory(),
        )


class SparseArch(nn.Module):
    """Pooled embeddings of all features: a `KeyedJaggedTensor` → ``(b, f, dim)``."""

    def __init__(
        self, embedding_bag_collection: EmbeddingBagCollection, model: str = "SparseArch"
    ) -> None:
        super().__init__()
        self.num_features, self.dim = one_dim(embedding_bag_collection, model)
        self.embedding_bag_collection = embedding_bag_collection

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        pooled: Tensor = self.embedding_bag_collection(features).values()
        # The number is given, because a batch may be empty on this rank; an export would fix len().
        return pooled.view(pooled.shape[0], self.num_features, self.dim)


class DLRM(nn.Module):
    """Deep learning recommendation model: Naumov et al., arXiv 1906.00091 (2019).

    ::

        numbers (b, k) ──► dense arch ──► (b, dim) ───┬─► dot products ─┬─► over arch ──► logit
        ids of f features ──► tables ──► (b, f, dim) ─┘   of all pairs  │
                              dense arch's output ──────────────────────┘

    Args:
        embedding_bag_collection: the tables, all of one dim, for f features.
        dense_in_features: k.
        dense_arch_layer_sizes: widths of the layers over the numbers; the last one is `dim`.
        over_arch_layer_sizes: widths of the layers over the products; the last one, 1 as a rule,
            is not activated.
        dense_device: where the layers are made.

    Raises:
        InvalidArgumentError: the tables differ in dim, or the dense arch ends in another width.
    """

    def __init__(
        self,
        embedding_bag_collection: EmbeddingBagCollection,
        dense_in_features: int,
        dense_arch_layer_sizes: Sequence[int],
        over_arch_layer_sizes: Sequence[int],
        dense_device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.sparse_arch = SparseArch(embedding_bag_collection, "DLRM")
        dim, vectors = self.sparse_arch.dim, self.sparse_arch.num_features + 1
        if not dense_arch_layer_sizes or dense_arch_layer_sizes[-1] != dim:
            raise InvalidArgumentError(
                f"DLRM: dense_arch_layer_sizes must end in {dim}, the embedding_dim of the "
                f"tables, found {list(dense_arch_layer_sizes)}"
            )
        self.dense_arch = mlp(
            [dense_in_features, *dense_arch_layer_sizes],
            is_last_activated=True,
            device=dense_device,
        )
        pairs = torch.triu_indices(vectors, vectors, offset=1, device=dense_device)
        self.register_buffer("_pairs", pairs[0] * vectors + pairs[1], persistent=False)
        self.over_arch = mlp(
            [dim + pairs.shape[1], *over_arch_layer_sizes],
            is_last_activated=False,
            device=dense_device,
        )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        # Runs of sparring train that were saved before the parts had TorchRec's names.
        for old, new in (("bottom", "dense_arch"), ("top", "over_arch")):
            for key in [each for each in state_dict if each.startswith(f"{prefix}{old}.")]:
                state_dict[f"{prefix}{new}{key[len(prefix + old) :]}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Logits ``(b, 1)``.

        Args:
            dense_features: ``(b, k)``, scaled to the order of 1.
            sparse_features: bags of ids of the f features.
        """
        dense = self.dense_arch(dense_features)
        embedded = self.sparse_arch(sparse_features).to(dense.dtype)
        vectors = torch.cat([dense.unsqueeze(1), embedded], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        assert isinstance(self._pairs, Tensor)
        logits: Tensor = self.over_arch(torch.cat([dense, products[:, self._pairs]], dim=1))
        return logits


class DLRMTrain(nn.Module):
    """A `DLRM` with its loss, as pipelines call it.

    Args:
        dlrm_module: the model; it is `model` here.
    """

    def __init__(self, dlrm_module: DLRM) -> None:
        super().__init__()
        self.model = dlrm_module

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Mean log loss; and, detached, the loss, logits ``(b,)`` and labels ``(b,)``."""
        logits = self.model(batch.dense_features, batch.sparse_features).squeeze(-1)
        loss = binary_cross_entropy_with_logits(logits, batch.labels.to(logits.dtype))
        return loss, (loss.detach(), logits.detach(), batch.labels.detach())


class DeepFM(nn.Module):
    """Factorisation machine and layers over the same embeddings: Guo et al., arXiv 1703.04247.

    TorchRec's `SimpleDeepFMNN`::

        numbers (b, k) ──► dense arch ──► (b, dim) ───┬─► deep (b, deep_fm_dimension) ─┬─► click
        ids of f features ──► tables ──► (b, f, dim) ─┴─► products of all pairs (b, 1) ┤
                              dense arch's output ─────────────────────────────────────┘

    Args:
        num_dense_features: k.
        embedding_bag_collection: the tables, all of one dim, for f features.
        hidden_layer_size: width of the hidden layer over the numbers.
        deep_fm_dimension: width of the deep part.

    Raises:
        InvalidArgumentError: the tables differ in dim.
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
        self.dense_arch = mlp([num_dense_features, hidden_layer_size, dim], is_last_activated=True)
        self.deep = mlp([vectors * dim, deep_fm_dimension], is_last_activated=True)
        self.over_arch = nn.Sequential(nn.Linear(dim + deep_fm_dimension + 1, 1), nn.Sigmoid())

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Probabilities of a click ``(b, 1)``; for their loss see `binary_cross_entropy`.

        Args:
            dense_features: ``(b, k)``, scaled to the order of 1.
            sparse_features: bags of ids of the f features.
        """
        return self.logits(dense_features, sparse_features).sigmoid()

    def logits(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        """The same before the sigmoid, ``(b, 1)``."""
        dense = self.dense_arch(dense_features)
        embedded = self.sparse_arch(sparse_features).to(dense.dtype)
        everything = torch.cat([dense, embedded.flatten(1)], dim=1)
        squares = everything.square().sum(1, keepdim=True)
        products = (everything.sum(1, keepdim=True).square() - squares) / 2
        parts = torch.cat([dense, self.deep(everything), products], dim=1)
        logits: Tensor = self.over_arch[0](parts)
        return logits
