"""The planner for ``plan="auto"``: converts training requests to plans, and plan files to sharding
plans."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparring.adapter import format_suggestion, resolve_method
from sparring.contracts import PlanRequest, PlanResult, ShardingPlan, TableWorkload
from sparring.errors import CapacityError, ConfigError, InvalidArgumentError, SparringError
from sparring_cli import read_document
from sparring_plan.planning.inputs import (
    KINDS,
    WHOLE_ROW_KINDS,
    Calibration,
    Feature,
    Growth,
    Link,
    PlanInputs,
    TableSpec,
    Topology,
    Transfer,
    with_machine,
)
from sparring_plan.planning.plan import Plan, read_plan
from sparring_plan.planning.planner import make_plan

__all__ = ["plan_from_file", "plan_from_request"]

CALIBRATION_VARIABLE = "SPARRING_CALIBRATION"
"""Environment variable with the path of a calibration, which `sparring plan calibrate` wrote."""

_SAMPLES = 1024
_GROWTH = Growth(per_day=10_000, horizon_days=100)
_METHOD = "adagrad"
_STORAGE = "hkv"
"""The storage whose memory and costs represent all storages."""
_SHARE_OF_MEMORY = 0.8
_NO_LIMIT = 1 << 60
_MAX_SHOWN = 40
_MAX_NAMED = 3


def plan_from_request(request: PlanRequest) -> PlanResult:
    """Creates a plan for the tables and ranks of a job.

    The tables are row_wise unless another plan is predicted to be faster by more than the error of the
    cost model, or the rows do not fit in memory.

    Raises:
        ConfigError: The calibration cannot be read.
        CapacityError: The tables do not fit in memory, and the user specified the rows of all tables.
        InvalidArgumentError: No kind is possible for a table.
    """
    calibration = _read_calibration()
    allowed = {each.table.name: _list_kinds(each) for each in request.tables}
    try:
        inputs, assumptions = _make_inputs(request, calibration, allowed)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise InvalidArgumentError(
            f"plan: {name} is {first['input']!r}, expected: {first['msg']}; change the topology or the "
            "constraints of the tables",
            setting=name,
        ) from error
    try:
        plan = make_plan(inputs, calibration, allowed)
    except CapacityError as error:
        if all(each.rows is not None for each in request.tables):
            raise
        chosen = {name: kinds[0] for name, kinds in allowed.items() if "row_wise" not in kinds}
        why = str(error).partition("\n")[0]
        return PlanResult(
            ShardingPlan(chosen),
            assumptions=(*assumptions, f"all tables are row_wise, because {why}"),
        )
    reason = ""
    plain = _make_plain_plan(inputs, calibration, allowed)
    margin = calibration.exchange.steps.error
    if plain is not None and _compare_steps(plan, plain) * (1 + margin) >= 1:
        plan = plain
        reason = (
            "; row_wise, because no other plan has a step that is predicted to be shorter by more than "
            f"{margin / (1 + margin):.0%}, the error of the cost model"
        )
    summary = _summary(plan, inputs, reason)
    return PlanResult(plan.sharding(request.world_size), summary, tuple(assumptions))


def _make_plain_plan(
    inputs: PlanInputs, calibration: Calibration, allowed: Mapping[str, Sequence[str]]
) -> Plan | None:
    """Returns the plan without choices: row_wise, except for tables that do not allow it. None if it
    does not fit in memory."""
    kinds = {
        name: ("row_wise",) if "row_wise" in kinds else kinds for name, kinds in allowed.items()
    }
    try:
        return make_plan(inputs.model_copy(update={"transfers": ["rows"]}), calibration, kinds)
    except CapacityError:
        return None


def _compare_steps(plan: Plan, plain: Plan) -> float:
    """Returns the predicted step of a plan, relative to the step of `plain`."""
    if plan.simulated_ms is None or plain.simulated_ms is None:
        return plan.step_ms / plain.step_ms
    return plan.simulated_ms / plain.simulated_ms


def plan_from_file(path: str, request: PlanRequest) -> ShardingPlan:
    """Reads the plan in a file, for the tables and ranks of a job.

    Raises:
        ConfigError: The file cannot be read, is not a plan, or does not match: ``file:line:column:
            message``.
    """
    plan = read_plan(path)
    known = [each.table.name for each in request.tables]
    for name in plan.tables:
        if name not in known:
            raise plan.make_error(
                name,
                "",
                f"there is no table {name!r}; {format_suggestion(name, known)}. Remove it, or create "
                "a plan for this model's tables: sparring plan make",
            )
    missing = [name for name in known if name not in plan.tables]
    if missing:
        shown = ", ".join(missing[:_MAX_NAMED]) + (", …" if len(missing) > _MAX_NAMED else "")
        raise ConfigError(
            f"{plan.location('tables')}: the plan does not contain {len(missing)} of {len(known)} "
            f"tables: {shown}; add them, or create the plan again: sparring plan make"
        )
    if request.world_size and request.world_size != plan.ranks:
        raise ConfigError(
            f"{plan.location('ranks')}: the plan is for {plan.ranks} ranks, but this job has "
            f"{request.world_size}; start {plan.ranks}, or create a plan whose topology has "
            f"{request.world_size}: sparring plan make"
        )
    return plan.sharding(plan.ranks, {each.table.name: each.table for each in request.tables})


def _list_kinds(workload: TableWorkload) -> Sequence[str]:
    """Returns the possible kinds of a table."""
    if workload.kinds:
        return workload.kinds
    kinds = KINDS if workload.supports_column_split else WHOLE_ROW_KINDS
    return [kind for kind in kinds if workload.supports_replication or kind != "data_parallel"]


def _make_inputs(
    request: PlanRequest, calibration: Calibration, allowed: Mapping[str, Sequence[str]]
) -> tuple[PlanInputs, list[str]]:
    """Returns the inputs of the planner, and sentences that describe its assumptions."""
    assumptions = []
    per_node = request.ranks_per_node
    grown = [each.table.name for each in request.tables if each.rows is None]
    if grown:
        assumptions.append(
            f"{_names(grown)}: the size is unknown, so the plan assumes {_GROWTH.per_day:,.0f} new "
            f"ids per day for {_GROWTH.horizon_days:g} days; specify a capacity (num_embeddings, "
            "vocabulary_size), or a plan file"
        )
    unknown = [each.table.name for each in request.tables if _find_method(each) is None]
    if unknown:
        assumptions.append(f"{_names(unknown)}: planned with the optimizer state of {_METHOD}")
    single = [
        each.table.name
        for each in request.tables
        if any(feature.ids is None for feature in each.features)
    ]
    if single:
        assumptions.append(f"{_names(single)}: planned with one id per feature and sample")
    elsewhere = [each.table.name for each in request.tables if not each.is_in_memory]
    memory = _NO_LIMIT if elsewhere else request.memory_bytes or _memory_share(per_node)
    if elsewhere:
        assumptions.append(
            f"{_names(elsewhere)}: memory is not counted, because the rows are not in memory"
        )
    near = {} if request.near_gbit is None else {"near": Link(gbit=request.near_gbit, latency_us=2)}
    far = {} if request.far_gbit is None else {"far": Link(gbit=request.far_gbit, latency_us=20)}
    topology = Topology(
        nodes=max(1, request.world_size // per_node),
        ranks_per_node=per_node,
        memory={calibration.storages[_STORAGE].memory: memory},
        cores=len(os.sched_getaffinity(0)),
        **near,
        **far,
    )
    tables = {each.table.name: _spec(each) for each in request.tables}
    transfers: list[Transfer] = ["rows"]
    if any(each.supports_pooling for each in request.tables):
        transfers = ["rows", "pooled"]
    offered = {kind for kinds in allowed.values() for kind in kinds}
    inputs = PlanInputs(
        topology=topology,
        samples=request.samples or _SAMPLES,
        tables=tables,
        kinds=[kind for kind in KINDS if kind in WHOLE_ROW_KINDS or kind in offered],
        transfers=transfers,
    )
    return with_machine(inputs, calibration.machine), assumptions


def _spec(workload: TableWorkload) -> TableSpec:
    table = workload.table
    features = {
        f"feature {number}": Feature(
            ids=1.0 if each.ids is None else each.ids,
            weighted=each.is_weighted,
            # If owners may not pool, bags are planned as rows.
            pooling=_pooling(each.pooling) if workload.supports_pooling else "none",
        )
        for number, each in enumerate(workload.features)
    }
    size: dict[str, Any] = {"growth": _GROWTH} if workload.rows is None else {"rows": workload.rows}
    return TableSpec(
        dim=table.dim,
        dtype=table.dtype,
        method=_find_method(workload) or _METHOD,
        features=features or {"ids": Feature(ids=1.0)},
        **size,
    )


def _pooling(name: str | None) -> Any:
    return name if name in ("sum", "mean") else "none" if name is None else "sum"


def _find_method(workload: TableWorkload) -> str | None:
    """Returns the update method, if its state is known."""
    if workload.method is None:
        return None
    name = workload.method.rpartition(".")[2].lower()
    try:
        resolve_method(name)
    except SparringError:
        return None
    return name


def _read_calibration() -> Calibration:
    """Reads the file that `CALIBRATION_VARIABLE` names, or the default costs."""
    path = os.environ.get(CALIBRATION_VARIABLE)
    if path:
        if not Path(path).is_file():
            raise ConfigError(
                f"{CALIBRATION_VARIABLE}: there is no file {path}; create one with sparring plan "
                "calibrate, or unset the variable to use the default costs"
            )
        found = read_document(path).as_model(Calibration)
        if _STORAGE not in found.storages:
            raise ConfigError(
                f"{CALIBRATION_VARIABLE}: {path} contains no costs of {_STORAGE}, only of "
                f"{', '.join(found.storages)}; install sparring-hkv, and calibrate again"
            )
        return found
    with as_file(files("sparring_plan.planning") / "calibration.yaml") as default:
        return read_document(default).as_model(Calibration)


def _memory_share(ranks_per_node: int) -> int:
    """Returns the bytes of this machine that a rank may use for tables."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    if text.isdecimal():
        total = min(total, int(text))
    return int(total * _SHARE_OF_MEMORY / ranks_per_node)


def _names(names: Sequence[str]) -> str:
    if len(names) <= _MAX_NAMED:
        return ("table " if len(names) == 1 else "tables ") + ", ".join(names)
    return f"{len(names)} tables ({', '.join(names[:_MAX_NAMED])}, …)"


def _summary(plan: Plan, inputs: PlanInputs, reason: str) -> str:
    """Formats the plan as a text table. `reason` is appended to its first line."""
    topology = inputs.topology
    lines = [
        f"plan auto: {len(plan.tables)} tables on {plan.ranks} ranks, {topology.ranks_per_node} per "
        f"node; batches of {inputs.samples:,} samples per rank; a step of "
        f"{plan.step_ms:g} ms in the cost model, {plan.gap:.1%} above its bound{reason}"
    ]
    shown = list(plan.tables.items())[:_MAX_SHOWN]
    width = max(len(name) for name, _ in shown)
    for name, each in shown:
        ranks = "all ranks" if each.ranks == "all" else f"ranks {', '.join(map(str, each.ranks))}"
        lines.append(
            f"  {name:{width}}  {each.kind:15}  {each.transfer:6}  {ranks:12}  {each.rows:>15,} rows  "
            f"{each.bytes / 2**20:>10,.1f} MiB per rank"
        )
    if len(plan.tables) > len(shown):
        lines.append(f"  and {len(plan.tables) - len(shown)} more tables")
    return "\n".join(lines)
