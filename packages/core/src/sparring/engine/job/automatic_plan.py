"""``plan="auto"``: rank 0 calls the planner and sends the plan to all ranks.

Without a planner, the plan is empty: every table is ``row_wise``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from sparring import errors
from sparring.contracts.planner import FeatureWorkload, PlanRequest, PlanResult, TableWorkload
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.ranks.layout import ShardingPlan, TableSharding
from sparring.contracts.ranks.rendezvous import Membership
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.admission import Bloom, parse_admission
from sparring.contracts.tables.table import TableConfig
from sparring.engine.job.bootstrap import AUTO, Job
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError, PluginError, SparringError
from sparring.plugins.registry import PluginManager
from sparring.updates.resolve import resolve_method

__all__ = ["PlanLike", "automatic_plan", "request_plan", "resolve_plan", "describe_workload"]

PlanLike = ShardingPlan | Mapping[str, TableSharding | str] | str | None
"""A sharding plan as users specify it: a mapping of tables to a kind or a `TableSharding`; ``auto``;
the path of a plan file; or None: all tables are ``row_wise``."""

_NONE: Mapping[str, object] = MappingProxyType({})
_IN_MEMORY = ("hkv", "memory")
"""Backends that store rows in the memory of the rank's machine."""

_NORMS_OF_ROWS = ("clip_norm", "clipnorm", "global_clipnorm")
"""Hyper-parameters, also of Keras, that clip a gradient by the norm of a row or of more elements."""

_log = logging.getLogger(__name__)


def describe_workload(
    table: TableConfig,
    storage: StorageChoice | Storage,
    features: Sequence[FeatureWorkload],
    method: str | None = None,
    hyperparameters: Mapping[str, object] = _NONE,
) -> TableWorkload:
    """Describes a table for a planner.

    Args:
        table: configuration of the table.
        storage: storage of its rows.
        features: features that look up in it.
        method: update method or native optimizer; None: unknown.
        hyperparameters: hyper-parameters of `method`, as the user specified them.
    """
    if isinstance(storage, Storage):
        offered = storage.capabilities
        rows, is_in_memory = storage.capacity, not offered.persistent and not offered.shared
        supports_replication = False  # an open storage determines whether its table is replicated
    else:
        capacity, policy = (storage.options.get(each) for each in ("capacity", "policy"))
        rows = capacity if isinstance(capacity, int) else None
        is_in_memory = storage.backend in _IN_MEMORY
        supports_replication = is_in_memory and policy in (None, "none")
    return TableWorkload(
        table,
        tuple(features),
        rows,
        method,
        kinds=("data_parallel",) if table.is_replicated else (),
        supports_replication=supports_replication or table.is_replicated,
        supports_column_split=is_in_memory
        and rows is None
        and not isinstance(storage, Storage)
        and not table.is_replicated
        and not isinstance(parse_admission(table.admission), Bloom)
        and _moves_elements(method, hyperparameters),
        is_in_memory=is_in_memory,
    )


def _moves_elements(method: str | None, hyperparameters: Mapping[str, object]) -> bool:
    """Whether an update is known to be element-wise, independent of other elements of the row."""
    if method is None:
        return False
    try:
        known = resolve_method(method.rpartition(".")[2].lower())
    except SparringError:
        return False
    return not known.couples_columns and not any(map(hyperparameters.get, _NORMS_OF_ROWS))


def resolve_plan(
    plan: PlanLike,
    tables: Callable[[], Sequence[TableWorkload]],
    job: Job,
    plugin_manager: PluginManager,
) -> ShardingPlan | Mapping[str, TableSharding | str] | None:
    """Returns the sharding plan for a container of `job`. All ranks must call it.

    Args:
        plan: plan as the user specified it.
        tables: returns the tables of the job; called only if the plan is a string.
        job: job of this rank.
        plugin_manager: finds the planner.

    Raises:
        InvalidArgumentError: the plan is a string that is neither ``auto`` nor the path of a file.
        ConfigError: the file is not a plan of these tables and ranks.
        CapacityError: for ``auto``, the tables do not fit into the memory.
    """
    if not isinstance(plan, str):
        return plan
    if plan != AUTO and not Path(plan).is_file():
        raise InvalidArgumentError(
            f"plan: found {plan!r}; pass 'auto', the path of a file of `sparring plan`, a dict of table "
            "to sharding kind, or a ShardingPlan"
        )
    request = PlanRequest(tuple(tables()), job.collective.world_size)
    if plan != AUTO:
        planner = plugin_manager.planner()
        if planner.read is None:
            raise PluginError(
                f"plan {plan!r}: planner {planner.name!r} cannot read plan files; install sparring-plan, "
                "which can"
            )
        return planner.read(plan, request)
    made = automatic_plan(request, job.collective, job.membership, plugin_manager)
    if job.collective.rank == 0:
        for sentence in made.assumptions:
            _log.warning("plan auto: %s", sentence)
        if made.summary:
            _log.info("%s", made.summary)
    return made.sharding


def automatic_plan(
    request: PlanRequest,
    collective: Collective,
    membership: Membership,
    plugin_manager: PluginManager,
) -> PlanResult:
    """Returns the plan of rank 0 on all ranks, which must all call it.

    Args:
        request: tables and properties of the job; the ranks per node are determined here.
        collective: collective of the job, which must not be in use.
        membership: membership of this rank.
        plugin_manager: finds the planner.

    Raises:
        CapacityError: the tables do not fit into the memory.
        SparringError: the planner failed on rank 0; all ranks raise the same error.
    """
    if collective.world_size == 1:
        return PlanResult(ShardingPlan())
    per_node, assumptions = _ranks_per_node(collective, membership)
    answer: dict[str, Any] = {}
    failure: Exception | None = None
    if collective.rank == 0:
        try:
            asked = replace(request, world_size=collective.world_size, ranks_per_node=per_node)
            answer = _as_json(request_plan(asked, plugin_manager))
        except Exception as error:  # reported to the other ranks, which wait for the plan
            failure = error
            answer = {"error": type(error).__name__, "message": str(error)}
    sent = np.frombuffer(json.dumps(answer).encode(), np.uint8)
    received = collective.all_gather(sent if collective.rank == 0 else np.empty(0, np.uint8))[0]
    if failure is not None:
        raise failure
    answer = json.loads(received.tobytes())
    if "error" in answer:
        kind = getattr(errors, answer["error"], SparringError)
        raise kind(answer["message"])
    return PlanResult(
        ShardingPlan({name: TableSharding(**each) for name, each in answer["tables"].items()}),
        answer["summary"],
        (*assumptions, *answer["assumptions"]),
    )


def request_plan(request: PlanRequest, plugin_manager: PluginManager) -> PlanResult:
    """Returns the plan of the planner. Without a planner, only the specified kinds are planned.

    Args:
        request: the tables and the ranks of the job.
        plugin_manager: finds the planner.

    Raises:
        CapacityError: the tables do not fit into the memory.
        PluginError: the planner did not return a plan.
    """
    try:
        planner = plugin_manager.planner()
    except PluginError as error:
        reason = str(error).partition(" (installed")[0]
        chosen = {each.table.name: each.kinds[0] for each in request.tables if each.kinds}
        return PlanResult(
            ShardingPlan(chosen),
            assumptions=(f"tables whose kind is not specified are row_wise, because {reason}",),
        )
    made = planner.factory(request)
    if not isinstance(made, PlanResult):
        raise PluginError(
            f"planner 'auto' must return a PlanResult, found {type(made).__name__}; upgrade the plugin "
            "that registers it"
        )
    return made


def _as_json(made: PlanResult) -> dict[str, Any]:
    shardings = {name: made.sharding.sharding_of(name) for name in made.sharding.tables}
    return {
        "tables": {name: asdict(each) for name, each in shardings.items() if each is not None},
        "summary": made.summary,
        "assumptions": list(made.assumptions),
    }


def _ranks_per_node(collective: Collective, membership: Membership) -> tuple[int, tuple[str, ...]]:
    """Returns the number of ranks per node; 1 and the reason if nodes have different numbers of ranks
    or non-consecutive ranks."""
    mine = np.array([membership.local_rank, membership.local_world_size], np.int64)
    local_rank, sizes = np.stack(collective.all_gather(mine)).T
    size, ranks = int(sizes[0]), np.arange(collective.world_size)
    if len(ranks) % size == 0 and (sizes == size).all() and (local_rank == ranks % size).all():
        return size, ()
    found = ", ".join(
        f"{rank} ({own} of {each})"
        for rank, own, each in zip(ranks[:8], local_rank[:8], sizes[:8], strict=True)
    )
    return 1, (
        "each rank is planned as a separate node, because nodes have different numbers of ranks or "
        f"non-consecutive ranks; found, as rank (local rank of number of local ranks): {found}"
        + (", …" if len(ranks) > 8 else ""),
    )
