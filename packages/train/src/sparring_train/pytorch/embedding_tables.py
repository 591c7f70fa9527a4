"""Tables of a run's features as PyTorch modules."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sparring_torch import EmbeddingBagCollection, EmbeddingBagConfig, PoolingType
from sparring_train.hookspecs import ModelRequest

__all__ = ["build_embedding_bags"]


def build_embedding_bags(
    request: ModelRequest, names: Collection[str] | None = None
) -> EmbeddingBagCollection:
    """Creates bags for some features, or for all. Features with the same table share it."""
    features = [each for each in request.schema.features if names is None or each.name in names]
    # Kinds without the key `pooling`, including user classes, use the sum.
    pooling = PoolingType(getattr(request.section, "pooling", "sum").upper())
    configs = [
        replace(
            EmbeddingBagConfig.of(request.tables[name]),
            pooling=pooling,
            feature_names=[each.name for each in features if each.table_name == name],
        )
        for name in dict.fromkeys(each.table_name for each in features)
    ]
    # The configuration says which features have one table, so several modules may share it.
    return EmbeddingBagCollection(
        configs, storage=request.storage, container=request.container, shared=True
    )
