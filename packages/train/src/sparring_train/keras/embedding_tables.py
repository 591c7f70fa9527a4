"""Tables of a run's features as Keras layers."""

from __future__ import annotations

from collections.abc import Collection

from sparring_tf import EmbeddingCollection, FeatureConfig, TableConfig
from sparring_train.hookspecs import ModelRequest

__all__ = ["build_embeddings"]


def build_embeddings(
    request: ModelRequest, names: Collection[str] | None = None, *, is_pooled: bool = True
) -> EmbeddingCollection:
    """Creates the tables of some features, or of all. Features with the same table share it."""
    # Kinds without the key `pooling`, including user classes, use the sum.
    pooling = getattr(request.section, "pooling", "sum") if is_pooled else None
    tables = {name: TableConfig.of(table, pooling) for name, table in request.tables.items()}
    return EmbeddingCollection(
        {
            each.name: FeatureConfig(name=each.name, table=tables[each.table_name])
            for each in request.schema.features
            if names is None or each.name in names
        },
        storage=request.storage,
        container=request.container,
    )
