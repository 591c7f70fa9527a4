"""`DLRM`, its variants with other interactions, and a training module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.models.clicks import Batch, SparseArch
from sparring_torch.models.crossnet import LowRankCrossNet
from sparring_torch.models.interactions import (
    InteractionArch,
    InteractionDCNArch,
    InteractionProjectionArch,
)
from sparring_torch.models.layers import DenseArch, OverArch
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection

__all__ = ["DLRM", "DLRMTrain", "DLRM_DCN", "DLRM_Projection"]


class _Base(nn.Module):
    """Layers for dense features, tables, an interaction of both, and layers after it.

    Args: see `DLRM`.
    """

    inter_arch: nn.Module
    over_arch: OverArch

    def __init__(
        self,
        embedding_bag_collection: EmbeddingBagCollection,
        dense_in_features: int,
        dense_arch_layer_sizes: Sequence[int],
        dense_device: torch.device | str | None,
    ) -> None:
        super().__init__()
        model = type(self).__name__
        self.sparse_arch = SparseArch(embedding_bag_collection, model)
        dim = self.sparse_arch.dim
        if not dense_arch_layer_sizes or dense_arch_layer_sizes[-1] != dim:
            raise InvalidArgumentError(
                f"{model}: dense_arch_layer_sizes must end in {dim}, the embedding_dim of the "
                f"tables, found {list(dense_arch_layer_sizes)}"
            )
        self.dense_arch = DenseArch(dense_in_features, dense_arch_layer_sizes, dense_device)

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Returns logits ``(b, 1)``.

        Args:
            dense_features: ``(b, k)``, scaled to a magnitude of about 1.
            sparse_features: bags of ids of the f features.
        """
        dense = self.dense_arch(dense_features)
        embedded = self.sparse_arch(sparse_features).to(dense.dtype)
        logits: Tensor = self.over_arch(self.inter_arch(dense, embedded))
        return logits


class DLRM(_Base):
    """Deep learning recommendation model: Naumov et al., arXiv 1906.00091 (2019).

    ::

        dense features (b, k) ──► dense arch ──► (b, dim) ┬─► dot products ─┬─► over arch ──► logit
        ids of f features ──► tables ──► (b, f, dim) ─────┘   of all pairs  │
                              dense arch's output ──────────────────────────┘

    Args:
        embedding_bag_collection: tables of equal dim with f features.
        dense_in_features: number k of dense features.
        dense_arch_layer_sizes: widths of the layers for dense features; the last one is `dim`.
        over_arch_layer_sizes: widths of the layers for the interaction; the last one, usually 1, has
            no activation.
        dense_device: device of the layers.

    Raises:
        InvalidArgumentError: the tables differ in dim, or the dense arch's output width is not `dim`.

    Examples:
        >>> import torch
        >>> from sparring_torch import DLRM, EmbeddingBagCollection, EmbeddingBagConfig
        >>> from sparring_torch import KeyedJaggedTensor
        >>> tables = EmbeddingBagCollection([EmbeddingBagConfig(name="items", embedding_dim=4)])
        >>> model = DLRM(tables, 3, [8, 4], [8, 1])
        >>> ids = KeyedJaggedTensor(["items"], [5, 6, 7], lengths=[2, 1])
        >>> model(torch.zeros(2, 3), ids).shape
        torch.Size([2, 1])
    """

    def __init__(
        self,
        embedding_bag_collection: EmbeddingBagCollection,
        dense_in_features: int,
        dense_arch_layer_sizes: Sequence[int],
        over_arch_layer_sizes: Sequence[int],
        dense_device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            embedding_bag_collection, dense_in_features, dense_arch_layer_sizes, dense_device
        )
        interaction = InteractionArch(self.sparse_arch.num_features, dense_device)
        self.inter_arch = interaction
        self.over_arch = OverArch(
            self.sparse_arch.dim + interaction.num_pairs, over_arch_layer_sizes, dense_device
        )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        # Loads weights of older runs of sparring train, in which these parts had other names.
        for old, new in (("bottom", "dense_arch"), ("top", "over_arch")):
            for key in [each for each in state_dict if each.startswith(f"{prefix}{old}.")]:
                state_dict[f"{prefix}{new}{key[len(prefix + old) :]}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class DLRM_DCN(_Base):  # noqa: N801 - TorchRec's name
    """`DLRM` with a cross network instead of dot products: Wang et al., "DCN V2", WWW 2021.

    Args:
        embedding_bag_collection, dense_in_features, dense_arch_layer_sizes, over_arch_layer_sizes: see
            `DLRM`.
        dcn_num_layers: number of layers of the cross network.
        dcn_low_rank_dim: rank of its matrices.
        dense_device: device of the layers.

    Raises:
        InvalidArgumentError: see `DLRM`.
    """

    def __init__(
        self,
        embedding_bag_collection: EmbeddingBagCollection,
        dense_in_features: int,
        dense_arch_layer_sizes: Sequence[int],
        over_arch_layer_sizes: Sequence[int],
        dcn_num_layers: int,
        dcn_low_rank_dim: int,
        dense_device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            embedding_bag_collection, dense_in_features, dense_arch_layer_sizes, dense_device
        )
        num_features = self.sparse_arch.num_features
        width = (num_features + 1) * self.sparse_arch.dim
        crossnet = LowRankCrossNet(width, dcn_num_layers, dcn_low_rank_dim).to(dense_device)
        self.inter_arch = InteractionDCNArch(num_features, crossnet)
        self.over_arch = OverArch(width, over_arch_layer_sizes, dense_device)


class DLRM_Projection(_Base):  # noqa: N801 - TorchRec's name
    """`DLRM` that computes two projections of its vectors, and the dot products between them.

    Args:
        embedding_bag_collection, dense_in_features, dense_arch_layer_sizes, over_arch_layer_sizes: see
            `DLRM`.
        interaction_branch1_layer_sizes: widths of the layers of the first projection; the last one is a
            multiple of dim.
        interaction_branch2_layer_sizes: widths of the layers of the second projection.
        dense_device: device of the layers.

    Raises:
        InvalidArgumentError: see `DLRM`; or a projection does not end in a multiple of dim.
    """

    def __init__(
        self,
        embedding_bag_collection: EmbeddingBagCollection,
        dense_in_features: int,
        dense_arch_layer_sizes: Sequence[int],
        over_arch_layer_sizes: Sequence[int],
        interaction_branch1_layer_sizes: Sequence[int],
        interaction_branch2_layer_sizes: Sequence[int],
        dense_device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            embedding_bag_collection, dense_in_features, dense_arch_layer_sizes, dense_device
        )
        num_features, dim = self.sparse_arch.num_features, self.sparse_arch.dim
        branches, num_products = [], 1
        for number, sizes in enumerate(
            (interaction_branch1_layer_sizes, interaction_branch2_layer_sizes), 1
        ):
            if not sizes or sizes[-1] % dim:
                raise InvalidArgumentError(
                    f"DLRM_Projection: interaction_branch{number}_layer_sizes must end in a multiple "
                    f"of {dim}, the embedding_dim of the tables, found {list(sizes)}"
                )
            branches.append(DenseArch((num_features + 1) * dim, sizes, dense_device))
            num_products *= sizes[-1] // dim
        self.inter_arch = InteractionProjectionArch(num_features, *branches)
        self.over_arch = OverArch(dim + num_products, over_arch_layer_sizes, dense_device)


class DLRMTrain(nn.Module):
    """A `DLRM` with its loss, for pipelines.

    Args:
        dlrm_module: the model; stored as `model`.
    """

    def __init__(self, dlrm_module: DLRM | DLRM_DCN | DLRM_Projection) -> None:
        super().__init__()
        self.model = dlrm_module

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Returns the mean log loss, and a tuple: detached loss, logits ``(b,)``, labels
        ``(b,)``."""
        logits = self.model(batch.dense_features, batch.sparse_features).squeeze(-1)
        loss = binary_cross_entropy_with_logits(logits, batch.labels.to(logits.dtype))
        return loss, (loss.detach(), logits.detach(), batch.labels.detach())
