"""The `plan` key: how tables are sharded over ranks, and checks of the file that it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparring import StorageChoice
from sparring.adapter import AUTO, describe_workload
from sparring.contracts import (
    FeatureWorkload,
    PlanRequest,
    ShardingPlan,
    TableWorkload,
)
from sparring.errors import ConfigError, PluginError
from sparring_cli import Locations, Problem
from sparring_train.config.names import short_name

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["check_plan", "plan_request", "read_plan_file"]

_SECTIONS = ("data", "model", "tables", "storage", "optimizer")


def plan_request(sections: Mapping[str, Any], world_size: int) -> PlanRequest:
    """The tables of a run, and its ranks, as a planner is told of them.

    Args:
        sections: data, model, tables, storage and optimizer of a `RunConfig`.
        world_size: ranks; 0: unknown.
    """
    data, model, tables, storage, optimizer = (sections[name] for name in _SECTIONS)
    choice = StorageChoice(storage.backend, storage.options)
    # Each example has one id of each feature.
    feature = FeatureWorkload("sum" if model.loss == "log_loss" else None, ids=1.0)
    workloads: list[TableWorkload] = []
    for wanted in model.tables(data.columns):
        table = tables.table_config(wanted)
        sparse = optimizer.sparse
        # Classes of frameworks have the state of the method of their name.
        method = short_name(sparse.name)
        workloads.append(
            describe_workload(table, choice, [feature], method, sparse.hyperparameters)
        )
    return PlanRequest(
        tuple(workloads),
        world_size,
        samples=max(1, data.batch_size // max(world_size, 1)),
        memory_bytes=tables.memory_bytes,
    )


def read_plan_file(path: str, request: PlanRequest, manager: PluginManager) -> ShardingPlan:
    """The plan that a file holds.

    Raises:
        ConfigError: the file cannot be read, is no plan, or does not fit: ``file:line:column: message``.
        PluginError: what reads plan files is not installed.
    """
    planner = manager.planner()
    if planner.read is None:
        raise PluginError(
            f"planner {planner.name!r} reads no files; install sparring-plan, which does, or write "
            f"plan: {AUTO}"
        )
    return planner.read(path, request)


def check_plan(
    sections: Mapping[str, Any], places: Locations, manager: PluginManager
) -> list[Problem]:
    """Problems of the file that `plan` names: of its syntax, kinds and tables. Ranks are unknown yet.

    Args:
        sections: those of a `RunConfig` that are right.
        places: where its values stand.
        manager: where what reads the file is looked up.
    """
    path = sections.get("plan")
    if path is None or path == AUTO or not all(name in sections for name in _SECTIONS):
        return []
    try:
        read_plan_file(path, plan_request(sections, 0), manager)
    except (ConfigError, PluginError) as error:
        return [Problem(places.of_value(("plan",)), f"plan: {error}", ("plan",))]
    return []
