"""The `plan` key: sharding of tables over ranks, and validation of the plan file."""

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
    """Returns the tables and the number of ranks of a run, as input for a planner.

    Args:
        sections: data, model, tables, storage and optimizer of a `RunConfig`.
        world_size: number of ranks; 0 if it is unknown.
    """
    data, model, tables, storage, optimizer = (sections[name] for name in _SECTIONS)
    choice = StorageChoice(storage.backend, storage.options)
    # Assumes that each example has one id per feature.
    feature = FeatureWorkload("sum" if model.loss == "log_loss" else None, ids=1.0)
    workloads: list[TableWorkload] = []
    for wanted in model.tables(data.columns):
        table = tables.table_config(wanted)
        sparse = optimizer.sparse
        # A framework's class has the same state as the update method of that name.
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
    """Reads a plan file.

    Raises:
        ConfigError: the file cannot be read, is not a plan, or does not fit the run:
            ``file:line:column: message``.
        PluginError: the installed planner does not read plan files.
    """
    planner = manager.planner()
    if planner.read is None:
        raise PluginError(
            f"reading plan {path}: planner {planner.name!r} does not read files; install sparring-plan, "
            f"or set plan: {AUTO}"
        )
    return planner.read(path, request)


def check_plan(
    sections: Mapping[str, Any], places: Locations, manager: PluginManager
) -> list[Problem]:
    """Returns problems with the syntax, kinds and tables of the plan file. Ranks are not checked,
    because they are not known yet.

    Args:
        sections: the valid sections of a `RunConfig`.
        places: positions of the configuration's values.
        manager: finds the planner.
    """
    path = sections.get("plan")
    if path is None or path == AUTO or not all(name in sections for name in _SECTIONS):
        return []
    try:
        read_plan_file(path, plan_request(sections, 0), manager)
    except (ConfigError, PluginError) as error:
        return [Problem(places.of_value(("plan",)), f"plan: {error}", ("plan",))]
    return []
