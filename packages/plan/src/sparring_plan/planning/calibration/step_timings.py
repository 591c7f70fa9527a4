"""Measures the costs of whole steps on this machine, in addition to finds, sums and updates.

Two ranks, which are threads of this process, execute steps of one table with each kind of sharding.
They use the real exchange, with messages that copy memory. The simulation of the same step explains
a part of the measured processor time. The rest is divided by the number of rows. Measuring two
widths separates costs per row from costs per byte. Finally, plans that were not used for these costs show
how much predictions differ from measurements.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from sparring import ExchangeOptions, LocalGroup, PluginManager, StepContainer
from sparring.adapter import (
    BagLookup,
    SingleRendezvous,
    look_up,
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
from sparring_plan.simulation.plan_step import PlanStep, simulate_plan

__all__ = ["NUM_BATCHES", "measure_step_costs", "make_step"]

NUM_BATCHES = 3
_RANKS, _METHOD, _IDS_OF_BAG, _IDS_OF_LONG_BAG = 2, "sgd", 2, 16
_SAMPLES, _ROWS, _FEW_ROWS = 8_192, 200_000, 500
_TINY_SAMPLES, _MANY_TABLES = 16, 16
_WIDTHS = (16, 128)
_STEPS, _ROUNDS, _REPETITIONS = 2, 9, 4
_ROWS_OF_ALL, _POOLED = ("row_wise", "rows"), ("row_wise", "pooled")
_MIXED = (_ROWS_OF_ALL, ("data_parallel", "rows"), _POOLED)
_CHECKED: Sequence[Mapping[str, Any]] = (
    {}, {"kind": "table_wise"}, {"kind": "data_parallel"},
    {"transfer": "pooled"}, {"transfer": "pooled", "ids": 6, "samples": 700},
    {"ways": (_ROWS_OF_ALL, _ROWS_OF_ALL, ("data_parallel", "rows"), ("data_parallel", "rows"))},
)  # fmt: skip
"""Settings of the cases that check predictions."""
_CHECKED_TABLES, _CHECKED_DIM, _CHECKED_SAMPLES = 4, 32, 2_048
_PARTS: Mapping[str, Mapping[str, Any]] = {
    "ids": {"rows": _FEW_ROWS},
    "rows": {},
    "replicas": {"kind": "data_parallel"},
    "bags": {"transfer": "pooled"},
    "bag_ids": {"transfer": "pooled", "ids": _IDS_OF_LONG_BAG, "samples": 1_024},
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
    ids: int = _IDS_OF_BAG
    tables: int = 1
    ways: tuple[tuple[str, str], ...] = ()
    """Kinds and transfers of the tables, if they differ."""


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
    # Tables with few rows, of which one, all, or one of three ways is pooled by owners.
    one_pooled = replace(many, ways=(_POOLED, *[_ROWS_OF_ALL] * (_MANY_TABLES - 1)))
    all_pooled = replace(many, transfer="pooled")
    alike = replace(few, tables=len(_MIXED))
    mixed = replace(alike, ways=_MIXED)
    checked = [
        _Case(
            **{"dim": _CHECKED_DIM, "samples": _CHECKED_SAMPLES, "tables": _CHECKED_TABLES, **asked}
        )
        for asked in _CHECKED
    ]
    cases = [
        *(few, many, one_pooled, all_pooled, alike, mixed),
        *itertools.chain.from_iterable(parts.values()),
        *checked,
    ]
    inputs = {case: _inputs(case, message_seconds) for case in cases}
    without = calibration.model_copy(update={"machine": None})
    plans = {case: _plan(case, inputs[case], without) for case in cases}
    measured = _measured([(inputs[case], plans[case]) for case in cases], manager)
    times = dict(zip(cases, measured, strict=True))
    found = StepCosts()

    def predicted(case: _Case) -> PlanStep:
        exchange = calibration.exchange.model_copy(update={"steps": found})
        known = without.model_copy(update={"exchange": exchange})
        placement = make_placement(plans[case], compute_option_costs(inputs[case], known))
        return simulate_plan(placement, inputs[case], known, has_one_core=True)

    def lacking(case: _Case) -> tuple[float, float]:
        """Returns the seconds per rank that the simulation does not explain, and the distinct keys of
        its batch."""
        step = predicted(case)
        return max(times[case] - step.seconds, 0.0), float(step.num_keys)

    one, several = lacking(few)[0], lacking(many)[0]
    table = max(several - one, 0.0) / (_MANY_TABLES - 1)
    # These cases have few rows, whose costs are not separated from the costs of their tables.
    ways = _solve_ways(
        times[one_pooled] - times[many],
        times[all_pooled] - times[many],
        times[mixed] - times[alike],
    )
    found = StepCosts(
        step_us=_rounded(max(one - table, 0.0) * 1e6), table_us=_rounded(table * 1e6), **ways
    )
    # All parts are computed several times, because cases also have costs of later parts: the case of
    # `ids` has few keys, and short bags have ids.
    for name, of_part in list(parts.items()) * _REPETITIONS:
        found = found.model_copy(update={name: RowCosts()})
        points = []
        for case in of_part:
            seconds, keys = lacking(case)
            width = case.dim // _RANKS if name == "blocks" else case.dim
            points.append((4.0 * width, seconds / _count(name, case, keys)))
        found = found.model_copy(update={name: _line(points)})
    # How much two plans may differ from the predicted ratio of their steps.
    ratios = [times[case] / predicted(case).seconds for case in checked]
    return found.model_copy(update={"error": _rounded(max(ratios) / min(ratios) - 1)})


def _solve_ways(one_pooled: float, all_pooled: float, mixed: float) -> dict[str, float]:
    """Returns `separate_us`, `pooled_us` and `way_us`.

    Args:
        one_pooled: Additional seconds of many tables if owners pool one of them.
        all_pooled: Additional seconds if owners pool all of them.
        mixed: Additional seconds of three tables with all three ways.
    """
    counts = [
        [_MANY_TABLES, _RANKS, 1],
        [_MANY_TABLES, _RANKS * _MANY_TABLES, 0],
        [len(_MIXED), _RANKS, len(_MIXED) - 1],
    ]
    solved = np.linalg.solve(counts, [one_pooled, all_pooled, mixed]).tolist()
    names = ("separate_us", "pooled_us", "way_us")
    return {name: _rounded(max(each, 0.0) * 1e6) for name, each in zip(names, solved, strict=True)}


def _count(part: str, case: _Case, keys: float) -> float:
    """Returns the number of rows that the costs of a part are divided by."""
    ids = case.samples * case.ids
    # Each owner has an id of three out of four short bags. Each rank has half of the columns of all keys.
    bags = case.samples * _RANKS * (1 - 0.5**case.ids)
    return {"ids": ids, "rows": keys, "bags": bags, "bag_ids": ids}.get(part, keys * _RANKS)


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
        "features": {"f": {"ids": case.ids}},
    }  # fmt: skip
    ways = case.ways or ((case.kind, case.transfer),)
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
    if not case.ways:
        return plan
    tables = {
        name: each.model_copy(update={"kind": kind, "transfer": transfer, "ranks": "all"})
        for (name, each), (kind, transfer) in zip(plan.tables.items(), case.ways, strict=True)
    }
    return plan.model_copy(update={"tables": tables})


class _Threads(SingleRendezvous):
    """Rendezvous of ranks that are threads of one process."""

    def shard_map(self) -> ShardMap:
        return ShardMap.balanced(_RANKS)


def _measured(asked: Sequence[tuple[PlanInputs, Plan]], manager: PluginManager) -> list[float]:
    """Returns the processor seconds per rank and step for each case: the minimum of several rounds,
    because other processes of the machine only add to it."""
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
    found: list[float] = times.min(axis=0).tolist()
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
    ids = {name: int(each.ids_per_sample) for name, each in inputs.tables.items()}
    batches = [
        [
            (name, random.integers(0, each.expected_rows, inputs.samples * ids[name]))
            for name, each in inputs.tables.items()
        ]
        for _ in range(NUM_BATCHES)
    ]
    tables = {name: {"dim": each.dim, "ids": ids[name]} for name, each in inputs.tables.items()}
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

    It makes the calls of the PyTorch adapter: one lookup of all tables, or one per table if owners pool
    the bags of any table.

    Args:
        batches: Batches, used in turn: ids of each table.
        tables: Table → its `dim` and its `ids` per bag.
    """
    resolved = resolve_method(method)
    choice = MethodChoice(resolved, parse_hyper(resolved, {"lr": 0.1}), 1)
    choices = dict.fromkeys(tables, choice)
    pooled = [name for name in tables if container.transfer(name)[0] == "pooled"]
    take = (
        partial(_look_up_each, container, tables, pooled) if pooled else _joint(container, tables)
    )
    turns = itertools.cycle(batches)

    def step() -> None:
        take(next(turns))
        container.apply_methods(choices)

    return step


_Batch = Sequence[tuple[str, Any]]


def _joint(
    container: StepContainer, tables: Mapping[str, Mapping[str, Any]]
) -> Callable[[_Batch], None]:
    """Returns a function that looks up a batch and accumulates its gradients in calls for all
    tables."""
    names = list(tables)
    collection = container.collection([(name, "sum") for name in names])

    def take(batch: _Batch) -> None:
        ids = dict(batch)
        num_bags = len(ids[names[0]]) // tables[names[0]]["ids"]
        lengths = np.repeat([tables[name]["ids"] for name in names], num_bags)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        joined = np.concatenate([ids[name] for name in names])
        plan = collection.plan_bags(
            joined, offsets, list(range(len(names))), num_bags, finds_rows=False
        )
        requests = list(zip(names, plan.keys(), strict=True))
        found = look_up(container.state, requests, is_training=True, are_distinct=True)
        plan.set_embeddings([each.rows for each in found])
        sources = plan.gradients([np.ones_like(plan.pool())])
        shadow_id = container.resources.register_direct(names)
        container.resources.accumulate_sources(shadow_id, sources)

    return take


def _look_up_each(
    container: StepContainer,
    tables: Mapping[str, Mapping[str, Any]],
    pooled: Sequence[str],
    batch: _Batch,
) -> None:
    """Looks up a batch and accumulates its gradients in calls for each table.

    Args:
        pooled: Tables whose owners pool.
    """
    offsets = {
        name: np.arange(0, len(ids) + 1, tables[name]["ids"], dtype=np.int64) for name, ids in batch
    }
    ones = {
        name: np.ones((len(offsets[name]) - 1, tables[name]["dim"]), np.float32) for name in tables
    }
    by_rows = [each for each in batch if each[0] not in pooled]
    if by_rows:
        found = container.lookup_all(by_rows)
        for (name, _), each in zip(by_rows, found, strict=True):
            pool(each.rows, each.inverse, offsets[name], "sum")
            gradient = pool_backward(ones[name], each.inverse, offsets[name], len(each.keys), "sum")
            assert each.shadow_id is not None
            container.resources.accumulate(each.shadow_id, gradient)
    wanted = [BagLookup(name, ids, offsets[name]) for name, ids in batch if name in pooled]
    bags = look_up_bags(container.state, wanted, is_training=True)
    for pools, request in zip(bags, wanted, strict=True):
        assert pools.shadow_id is not None
        container.resources.accumulate_bags(pools.shadow_id, ones[request.table])


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
