"""The tables of modules, as a planner is told of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sparring.adapter import TableDeclaration, workload_of
from sparring.contracts import FeatureWorkload, TableWorkload
from sparring_torch.embedding import Embedding
from sparring_torch.embedding_collection import EmbeddingCollection
from sparring_torch.table_module import TableModule

__all__ = ["workloads_of"]


def workloads_of(modules: Iterable[TableModule]) -> Sequence[TableWorkload]:
    """One for each table, with the features of all `modules` that look up in it."""
    features: dict[str, list[FeatureWorkload]] = {}
    declared: dict[str, tuple[TableDeclaration, str | None]] = {}
    for module in modules:
        is_pooled = not isinstance(module, (Embedding, EmbeddingCollection))
        for table, pooling in module.agent.features:
            found = FeatureWorkload(pooling if is_pooled else None)
            features.setdefault(table, []).append(found)
        for each in module.agent.declarations:
            declared.setdefault(each.table.name, (each, module.agent.known_method))
    return [
        replace(
            workload_of(each.table, each.storage, features.get(name, ()), method),
            may_pool=each.device == "cpu" and all(of.pooling for of in features.get(name, ())),
        )
        for name, (each, method) in declared.items()
    ]
