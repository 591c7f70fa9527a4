"""Parts that several models share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from sparring.errors import InvalidArgumentError
from sparring_torch.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.table_configs import table_features

__all__ = ["mlp", "one_dim"]


def mlp(
    widths: Sequence[int],
    *,
    is_last_activated: bool,
    device: torch.device | str | None = None,
) -> nn.Sequential:
    """Linear layers from each width to the next, with ReLU after each but perhaps the last."""
    layers: list[nn.Module] = []
    for below, above in pairwise(widths):
        layers += [nn.Linear(below, above, device=device), nn.ReLU()]
    return nn.Sequential(*(layers if is_last_activated else layers[:-1]))


def one_dim(collection: EmbeddingBagCollection, model: str) -> tuple[int, int]:
    """Number of features of a collection, and the one dim of its tables.

    Raises:
        InvalidArgumentError: the tables differ in dim.
    """
    configs = collection.embedding_bag_configs()
    dims = sorted({config.embedding_dim for config in configs})
    if len(dims) != 1:
        raise InvalidArgumentError(
            f"{model} takes products of embeddings, so all tables need one embedding_dim, "
            f"found {dims}"
        )
    return sum(len(table_features(config)) for config in configs), dims[0]
