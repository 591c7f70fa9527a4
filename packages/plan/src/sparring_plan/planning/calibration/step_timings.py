"""Measures the costs of whole steps on this machine, in addition to finds, sums and updates.

Two ranks, which are threads of this process, execute steps of one table with each kind of sharding.
They use the real exchange, with messages that copy memory. The simulation of the same step explains
a part of the measured processor time. The rest is divided by the number of rows. Measuring two
widths separates costs per row from costs per byte.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparring import ExchangeOptions, LocalGroup, PluginManager, StepContainer
from sparring.adapter import (
    BagLookup,
    SingleRendezvous,
    look_up_bags,
    parse_hyper,
    pool,
    pool_backward,
    resolve_method,
)
from sparring.contracts import Collective, MethodChoice, ShardMap, TableConfig
from sparring_plan.planning.costs.costs import compute_option_costs
from sparring_plan.planning.inputs import Calibration, PlanInputs, RowCosts, StepCosts
from sparring_plan.planning.plan import Plan
from sparring_plan.planning.planned_placement import make_placement
from sparring_plan.planning.planner import make_plan
from sparring_plan.simulation.plan_step import simulate_plan

__all__ = ["NUM_BATCHES", "measure_step_costs", "make_step"]

NUM_BATCHES = 3
_RANKS, _METHOD, _IDS_OF_BAG = 2, "sgd", 2
_SAMPLES, _ROWS, _FEW_ROWS = 8_192, 200_000, 500
_TINY_SAMPLES, _MANY_TABLES = 16, 16
_WIDTHS = (16, 128)
_STEPS, _ROUNDS = 2, 9
_MIXED = (("row_wise", "rows"), ("data_parallel", "rows"), ("row_wise", "pooled"))
_PARTS: Mapping[str, Mapping[str, Any]] = {
    "ids": {"rows": _FEW_ROWS},
    "rows": {},
    "replicas": {"kind": "data_parallel"},
    "bags": {"transfer": "pooled"},
    "blocks": {"kind": "column_wise"},
}
"""For each part of `StepCosts`, the settings of the case that measures it. The costs of a part are
computed from those of the previous parts."""


@dataclass(frozen=True, slots=True)
class _Case:
    """Steps to measure, and the divisor of their costs."""

    kind: str = "row_wise"
    transfer: str = "rows"
    dim: int = 16
    rows: int = _ROWS
    samples: int = _SAMPLES
    tables: int = 1
    is_mixed: bool = False
    """Whether one table transfers rows, one is replicated, and one is pooled by its owners."""


def measure_step_costs(
    calibration: Calibration, message_seconds: float, manager: PluginManager
) -> StepCosts:
    """Measures for about ten seconds. Cases are interleaved, so that all are measured under the same
    conditions.

    Args:
        calibration: Costs of its storages, finds and sums.
        message_seconds: Time that a message between the two threads costs each end.
    """
    few, many = _Case(samples=_TINY_SAMPLES), _Case(samples=_TINY_SAMPLES, tables=_MANY_TABLES)
    parts = {name: [_Case(dim=dim, **asked) for dim in _WIDTHS] for name, asked in _PARTS.items()}
    alike = _Case(samples=_TINY_SAMPLES, tables=len(_MIXED))
    mixed = replace(alike, is_mixed=True)
    cases = [few, many, alike, mixed, *itertools.chain.from_iterable(parts.values())]
    inputs = {case: _inputs(case, message_seconds) for case in cases}
    without = calibration.model_copy(update={"machine": None})
    plans = {case: _plan(case, inputs[case], without) for case in cases}
    measured = _measured([(inputs[case], plans[case]) for case in cases], manager)
    times = dict(zip(cases, measured, strict=True))
    found = StepCosts()

    def lacking(case: _Case) -> tuple[float, float]:
        """Returns the seconds per rank that the simulation does not explain, and the distinct keys of
        its batch."""
        exchange = calibration.exchange.model_copy(update={"steps": found})
        known = without.model_copy(update={"exchange": exchange})
        placement = make_placement(plans[case], compute_option_costs(inputs[case], known))
        step = simulate_plan(placement, inputs[case], known, has_one_core=True)
        return max(times[case] - step.seconds, 0.0), float(step.num_keys)

    one, several = lacking(few)[0], lacking(many)[0]
    table = max(several - one, 0.0) / (_MANY_TABLES - 1)
    found = StepCosts(step_us=_rounded(max(one - table, 0.0) * 1e6), table_us=_rounded(table * 1e6))
    # These cases have few rows, whose costs are not separated from the costs of their tables.
    ways = max(times[mixed] - times[alike], 0.0) / (len(_MIXED) - 1)
    found = found.model_copy(update={"way_us": _rounded(ways * 1e6)})
    # All parts are computed twice, because the few keys of the case of `ids` also have costs of
    # `rows`, which are known only after the first time.
    for name, of_part in [*parts.items(), *parts.items()]:
        found = found.model_copy(update={name: RowCosts()})
        points = []
        for case in of_part:
            seconds, keys = lacking(case)
            width = case.dim // _RANKS if name == "blocks" else case.dim
            points.append((4.0 * width, seconds / _count(name, keys)))
        found = found.model_copy(update={name: _line(points)})
    return found


def _count(part: str, keys: float) -> float:
    """Returns the number of rows that the costs of a part are divided by."""
    ids = _SAMPLES * _IDS_OF_BAG
    # Each owner has an id of three out of four bags. Each rank has half of the columns of all keys.
    bags = _SAMPLES * _RANKS * (1 - 0.5**_IDS_OF_BAG)
    return {"ids": ids, "rows": keys, "bags": bags}.get(part, keys * _RANKS)


def _line(points: Sequence[tuple[float, float]]) -> RowCosts:
    (narrow, low), (wide, high) = points
    slope = max(high - low, 0.0) / (wide - narrow)
    start = low - slope * narrow
    if start < 0:
        start, slope = 0.0, (low + high) / (narrow + wide)
    return RowCosts(ns=_rounded(start * 1e9), ns_per_byte=_rounded(slope * 1e9))


def _inputs(case: _Case, message_seconds: float) -> PlanInputs:
    table = {
        "dim": case.dim, "rows": case.rows, "skew": 0.0, "method": _METHOD,
        "features": {"f": {"ids": _IDS_OF_BAG}},
    }  # fmt: skip
    ways = _MIXED if case.is_mixed else ((case.kind, case.transfer),)
    topology = {
        "nodes": 1, "ranks_per_node": _RANKS, "memory": {"host": 1 << 40},
        # Threads copy each other's memory, which is part of the measurement.
        "near": {"gbit": 1e6}, "message_us": message_seconds * 1e6,
    }  # fmt: skip
    return PlanInputs.model_validate(
        {
            "topology": topology,
            "samples": case.samples,
            "kinds": sorted({kind for kind, _ in ways}),
            "transfers": sorted({transfer for _, transfer in ways}),
            "tables": {f"calibration_{each}": table for each in range(case.tables)},
        }
    )


def _plan(case: _Case, inputs: PlanInputs, calibration: Calibration) -> Plan:
    plan = make_plan(inputs, calibration)
    if not case.is_mixed:
        return plan
    tables = {
        name: each.model_copy(update={"kind": kind, "transfer": transfer})
        for (name, each), (kind, transfer) in zip(plan.tables.items(), _MIXED, strict=True)
    }
    return plan.model_copy(update={"tables": tables})


class _Threads(SingleRendezvous):
    """Rendezvous of ranks that are threads of one process."""

    def shard_map(self) -> ShardMap:
        return ShardMap.balanced(_RANKS)


def _measured(asked: Sequence[tuple[PlanInputs, Plan]], manager: PluginManager) -> list[float]:
    """Returns the processor seconds per rank and step for each case: the median of several rounds."""
    barrier = threading.Barrier(_RANKS)
    groups = [LocalGroup(_RANKS) for _ in asked]
    times = np.zeros((_ROUNDS, len(asked)))

    def take_steps(rank: int) -> None:
        with ExitStack() as closing:
            steps = [
                _step(closing, group.join(rank), each, manager)
                for group, each in zip(groups, asked, strict=True)
            ]
            for round_, (index, step) in itertools.product(range(_ROUNDS), enumerate(steps)):
                barrier.wait()
                begin = time.process_time()
                barrier.wait()
                for _ in range(_STEPS):
                    step()
                barrier.wait()
                if rank == 0:
                    times[round_, index] = (time.process_time() - begin) / _STEPS / _RANKS

    def guarded(rank: int) -> None:
        try:
            take_steps(rank)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(_RANKS) as threads:
        list(threads.map(guarded, range(_RANKS)))
    found: list[float] = np.median(times, axis=0).tolist()
    return found


def _step(
    closing: ExitStack,
    collective: Collective,
    asked: tuple[PlanInputs, Plan],
    manager: PluginManager,
) -> Callable[[], None]:
    """Returns a step of a new container that already contains its rows."""
    inputs, plan = asked
    container = StepContainer(
        collective=closing.enter_context(collective), rendezvous=_Threads(),
        exchange=ExchangeOptions(1 << 16, 8), plan=plan.sharding(_RANKS), plugin_manager=manager,
    )  # fmt: skip
    closing.enter_context(container)
    for name, each in inputs.tables.items():
        container.declare(TableConfig(name, each.dim))
        container.set_state(name, np.empty(0, np.float32), _METHOD)
    random = np.random.default_rng(collective.rank)
    num_ids = inputs.samples * _IDS_OF_BAG
    batches = [
        [
            (name, random.integers(0, each.expected_rows, num_ids))
            for name, each in inputs.tables.items()
        ]
        for _ in range(NUM_BATCHES)
    ]
    tables = {name: {"dim": each.dim, "ids": _IDS_OF_BAG} for name, each in inputs.tables.items()}
    step = make_step(container, batches, tables, _METHOD)
    for _ in range(NUM_BATCHES):
        step()
    return step


def make_step(
    container: StepContainer,
    batches: Sequence[Sequence[tuple[str, Any]]],
    tables: Mapping[str, Mapping[str, Any]],
    method: str,
) -> Callable[[], None]:
    """Returns a step: pools bags of every table, and sends back gradients of ones.

    Args:
        batches: Batches, used in turn: ids of each table.
        tables: Table → its `dim` and its `ids` per bag.
    """
    resolved = resolve_method(method)
    choice = MethodChoice(resolved, parse_hyper(resolved, {"lr": 0.1}), 1)
    choices = dict.fromkeys(tables, choice)
    pooled = [name for name in tables if container.transfer(name)[0] == "pooled"]
    offsets = {
        name: np.arange(0, len(ids) + 1, tables[name]["ids"], dtype=np.int64)
        for name, ids in batches[0]
    }
    ones = {
        name: np.ones((len(offsets[name]) - 1, tables[name]["dim"]), np.float32) for name in tables
    }
    turns = itertools.cycle(batches)

    def step() -> None:
        batch = next(turns)
        by_rows = [each for each in batch if each[0] not in pooled]
        if by_rows:
            found = container.lookup_all(by_rows)
            for (name, _), each in zip(by_rows, found, strict=True):
                pool(each.rows, each.inverse, offsets[name], "sum")
                gradient = pool_backward(
                    ones[name], each.inverse, offsets[name], len(each.keys), "sum"
                )
                assert each.shadow_id is not None
                container.resources.accumulate(each.shadow_id, gradient)
        if pooled:
            wanted = [BagLookup(name, ids, offsets[name]) for name, ids in batch if name in pooled]
            bags = look_up_bags(container.state, wanted, is_training=True)
            for pools, request in zip(bags, wanted, strict=True):
                assert pools.shadow_id is not None
                container.resources.accumulate_bags(pools.shadow_id, ones[request.table])
        container.apply_methods(choices)

    return step


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
