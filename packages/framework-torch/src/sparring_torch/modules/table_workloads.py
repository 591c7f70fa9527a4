"""Describes the tables of modules for the sharding planner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sparring.adapter import TableDeclaration, describe_workload
from sparring.contracts import FeatureWorkload, TableWorkload
from sparring_torch.lookup.train_agent import TrainAgent
from sparring_torch.modules.embedding import Embedding
from sparring_torch.modules.embedding_collection import EmbeddingCollection
from sparring_torch.modules.table_module import TableModule

__all__ = ["list_workloads"]


def list_workloads(modules: Iterable[TableModule]) -> Sequence[TableWorkload]:
    """Returns one workload per table, with the features of all `modules` that use the table."""
    features: dict[str, list[FeatureWorkload]] = {}
    declared: dict[str, tuple[TableDeclaration, TrainAgent]] = {}
    for module in modules:
        is_pooled = not isinstance(module, (Embedding, EmbeddingCollection))
        for table, pooling in module.agent.features:
            found = FeatureWorkload(pooling if is_pooled else None)
            features.setdefault(table, []).append(found)
        for each in module.agent.declarations:
            declared.setdefault(each.table.name, (each, module.agent))
    workloads = []
    for name, (each, agent) in declared.items():
        found_in, method = features.get(name, ()), agent.known_method
        workload = describe_workload(
            each.table, each.storage, found_in, method, agent.known_hyperparameters
        )
        supports_pooling = each.device == "cpu" and all(of.pooling for of in found_in)
        supports_column_split = workload.supports_column_split and each.device == "cpu"
        workloads.append(
            replace(
                workload,
                supports_pooling=supports_pooling,
                supports_column_split=supports_column_split,
            )
        )
    return workloads
