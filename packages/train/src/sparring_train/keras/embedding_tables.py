"""Tables of the features of a run, as layers of Keras."""

from __future__ import annotations

from collections.abc import Collection

from sparring_tf import EmbeddingCollection, FeatureConfig, TableConfig
from sparring_train.hookspecs import ModelRequest

__all__ = ["build_embeddings"]


def build_embeddings(
    request: ModelRequest, names: Collection[str] | None = None, *, is_pooled: bool = True
) -> EmbeddingCollection:
    """Tables of these features, or of all; features of one table share it."""
    # What kinds do not say, classes of one's own among them, is the sum.
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
