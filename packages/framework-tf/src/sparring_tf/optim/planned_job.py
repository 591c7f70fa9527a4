"""Creates a container with a sharding plan in the job that this process was started for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparring import StepContainer, join_job, make_plugin_manager
from sparring.adapter import AUTO, PlanLike, describe_workload, resolve_plan
from sparring.contracts import FeatureWorkload, TableWorkload
from sparring.errors import InvalidArgumentError
from sparring_tf.lookup.table_agent import TableAgent

__all__ = ["create_planned_container"]

_DEADLINE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Automatic:
    """A backend that is selected by the launcher of the process."""

    backend: str = AUTO
    options: dict[str, Any] = field(default_factory=dict)


def create_planned_container(
    agents: Sequence[TableAgent],
    plan: PlanLike,
    method: str | None,
    hyperparameters: Mapping[str, Any] | None = None,
) -> StepContainer:
    """Creates a container in the job with all tables of `agents`, sharded by `plan`.

    Args:
        agents: the agents of the layers; they join the container.
        plan: the plan as passed by the user.
        method: the update method or optimizer of the tables, or None if unknown.
        hyperparameters: hyper-parameters of the update method, or None for a Keras optimizer.

    Raises:
        InvalidArgumentError: tables already have a container or rows, or the plan does not match the
            tables or the ranks.
        CapacityError: the plan is ``auto``, and the tables do not fit in memory.
        PluginError: no plugin provides a backend or sharding kind.
        DeadlineError: some ranks did not join in time.
    """
    bound = [each for each in agents if each.is_container_given or each.has_rows]
    if bound:
        raise InvalidArgumentError(
            f"Optimizer: a plan was given, but tables {bound[0].table_names} already have a container or "
            "rows; pass the plan to their container instead: StepContainer(plan=…)",
            table=bound[0].table_names[0],
        )
    manager = make_plugin_manager()
    job = join_job(
        _Automatic(),
        _Automatic(),
        framework="tensorflow",
        deadline_seconds=_DEADLINE_SECONDS,
        plugin_manager=manager,
    )
    try:
        container = StepContainer(
            collective=job.collective,
            rendezvous=job.rendezvous,
            plugin_manager=manager,
            plan=resolve_plan(
                plan, lambda: _workloads(agents, method, hyperparameters), job, manager
            ),
        )
        for each in agents:
            each.join(container)
            each.is_container_given = True
        container.check_plan()
    except BaseException:
        job.close()  # for example, the plan was rejected
        raise
    return container


def _workloads(
    agents: Sequence[TableAgent], method: str | None, hyperparameters: Mapping[str, Any] | None
) -> Sequence[TableWorkload]:
    found: dict[str, TableWorkload] = {}
    for agent in agents:
        pooled = agent.pooled_features
        for each in agent.declarations:
            features = [
                FeatureWorkload(pooling) for table, pooling in pooled if table == each.table.name
            ] or [FeatureWorkload(None)]
            workload = describe_workload(
                each.table, each.storage, features, method, hyperparameters or {}
            )
            if hyperparameters is None:  # a Keras optimizer may clip gradients by rows
                workload = replace(workload, supports_column_split=False)
            found.setdefault(each.table.name, workload)
    return list(found.values())
