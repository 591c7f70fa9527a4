"""Tables of the features of a run, as modules of PyTorch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sparring_torch import EmbeddingBagCollection, EmbeddingBagConfig, PoolingType
from sparring_train.hookspecs import ModelRequest

__all__ = ["build_embedding_bags"]


def build_embedding_bags(
    request: ModelRequest, names: Collection[str] | None = None
) -> EmbeddingBagCollection:
    """Tables of these features, or of all, a bag each; features of one table share it."""
    features = [each for each in request.schema.features if names is None or each.name in names]
    # What kinds do not say, classes of one's own among them, is the sum.
    pooling = PoolingType(getattr(request.section, "pooling", "sum").upper())
    configs = [
        replace(
            EmbeddingBagConfig.of(request.tables[name]),
            pooling=pooling,
            feature_names=[each.name for each in features if each.table_name == name],
        )
        for name in dict.fromkeys(each.table_name for each in features)
    ]
    return EmbeddingBagCollection(configs, storage=request.storage, container=request.container)
