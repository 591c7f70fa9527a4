"""Lower bounds for the step of all plans, and choices of options near these bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparring_plan.planning.costs.costs import Floats, Ints, Options
from sparring_plan.planning.search.placement import Placement

__all__ = [
    "SAFETY",
    "Bound",
    "Rows",
    "compute_aggregate_bound",
    "as_model",
    "choose_for_goal",
    "highs",
    "compute_linear_bound",
    "make_solver",
    "compute_threshold_bound",
]

_ROUNDS = 500
_STRENGTHEN = 0.2
"""Shards with at least this share of the bound have separate constraints."""
SAFETY = 1e-6
"""Solvers satisfy constraints up to a tolerance; the bound is reduced by as much."""
_NEAREST = 0.003
_MAX_PARTS = 4
_NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven bound, with the choice of options that was found with it.

    Args:
        seconds: No plan has a shorter step.
        choice: (tables,): an option for each table.
        prices: (resources,): how much each resource limits the step; their sum is 1.
        memory_prices: (memories,): seconds per byte on a rank.
        solver: Solver that proved it.
    """

    seconds: float
    choice: Ints
    prices: Floats
    memory_prices: Floats
    solver: str


def highs() -> Any | None:
    """Returns the module `highspy`, or None if the extra is not installed."""
    try:
        import highspy
    except ImportError:
        return None
    return highspy


def make_solver(module: Any, settings: Mapping[str, Any] = _NO_SETTINGS) -> Any:
    """Returns a silent solver with one thread and a fixed seed.

    Args:
        module: `highspy`.
        settings: Further options of HiGHS.
    """

    class Quiet(module.Highs):  # type: ignore[misc]
        """Disables the banner that some versions print in this method, which the constructor calls."""

        def enableCallbacks(self) -> None:  # noqa: N802
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()

    solver = Quiet()
    for name, value in {
        "output_flag": False,
        "threads": 1,
        "random_seed": 0,
        **settings,
    }.items():
        solver.setOptionValue(name, value)
    return solver


def compute_aggregate_bound(options: Options) -> Bound:
    """Computes the Lagrangian bound of the aggregate problem by multiplicative weights, in NumPy.

    The aggregate problem chooses an option for each table such that the average rank's load of each
    resource is at most T, and the average rank's bytes fit. For any prices λ ≥ 0 of resources with
    the sum 1 and μ ≥ 0 of memories, the minimum over all choices of λ·load + μ·(bytes − capacity) is
    at most T.
    """
    load = options.total() / options.num_ranks
    memory = options.total_memory() / (options.num_ranks * options.capacity)
    fixed = options.fixed + options.average_held()
    capacity_share = 1 - options.average_held_memory() / options.capacity
    num_resources, num_memories = load.shape[1], memory.shape[1]
    prices = np.full(num_resources, 1 / num_resources)
    memory_prices = np.zeros(num_memories)
    chosen = np.zeros(len(options))
    best, best_prices, best_memory = 0.0, prices, memory_prices
    choice = _cheapest(options, load.sum(axis=1))
    scale = max(float((load[choice].sum(axis=0) + fixed).max()), 1e-12)
    for round_ in range(_ROUNDS):
        cost = load @ prices + scale * (memory @ memory_prices)
        choice = _cheapest(options, cost)
        value = cost[choice].sum() + fixed @ prices - scale * (capacity_share @ memory_prices)
        if value > best:
            best, best_prices, best_memory = float(value), prices, memory_prices
        if round_ >= _ROUNDS // 2:
            chosen[choice] += 1
        used = load[choice].sum(axis=0) + fixed
        step = 2 / np.sqrt(round_ + 1)
        weights = np.log(np.maximum(prices, 1e-12)) + step * used / max(used.max(), 1e-12)
        weights = np.exp(weights - weights.max())
        prices = weights / weights.sum()
        excess = np.clip(memory[choice].sum(axis=0) - capacity_share, -1, 1)
        memory_prices = np.maximum(0, memory_prices + 0.2 * step * excess)
    alone = (options.base + options.shard + options.fixed).max(axis=1)
    smallest = np.minimum.reduceat(alone, options.start[:-1])
    seconds = max(best, float(smallest.max()), Placement(options).seconds) * (1 - SAFETY)
    return Bound(
        seconds,
        _cheapest(options, -chosen),
        best_prices,
        best_memory * scale / (options.capacity),
        "numpy",
    )


def _cheapest(options: Options, cost: Floats) -> Ints:
    """Returns the option with minimum cost for each table, (tables,); the first of equal ones."""
    least = np.minimum.reduceat(cost, options.start[:-1])
    places = np.where(cost <= least[options.table], np.arange(len(cost)), len(cost))
    found: Ints = np.minimum.reduceat(places, options.start[:-1])
    return found


def compute_linear_bound(options: Options, before: Bound) -> Bound | None:
    """Computes the bound with HiGHS: the aggregate problem, with the constraint that a large shard
    loads one rank.

    Returns None if highspy is not installed, or HiGHS proves nothing (for example if nothing fits).
    """
    module = highs()
    if module is None:
        return None
    solved = _Relaxation(options, before.seconds).solve(module)
    if solved is None or not np.isfinite(solved.seconds):
        return None
    choice = _cheapest(options, -np.round(solved.values[: len(options)], 9))
    seconds = max(solved.seconds * (1 - SAFETY), before.seconds)
    return Bound(seconds, choice, before.prices, before.memory_prices, "highs")


def compute_threshold_bound(options: Options, lower: float, upper: float) -> float:
    """Finds a bound between the bound `lower` and the step `upper` of a plan, by bisection.

    No plan with a step of at most T has an option that takes longer by itself. Among shards that need
    more than half of T or of a memory, a rank has at most one; of those that need more than a third,
    at most two, and so on. If the relaxation with these constraints has no step of at most T, no plan
    has one.
    """
    module = highs()
    if module is None:
        return lower
    alone = (options.base + options.shard + options.fixed).max(axis=1)
    low, high = lower, upper
    while high - low > _NEAREST * low:
        middle = (low + high) / 2
        kept = alone <= middle * (1 + SAFETY)
        if np.logical_or.reduceat(kept, options.start[:-1]).all():
            solved = _Relaxation(options, middle, kept=kept).solve(module)
            # None means that HiGHS gave up, which proves nothing.
            if solved is None or solved.seconds * (1 - SAFETY) <= middle:
                high = middle
                continue
        low = middle
    return low


def choose_for_goal(options: Options, goal: float, capacity_share: float) -> Ints | None:
    """Chooses an option for each table such that a step of about `goal` with the share
    `capacity_share` of the memory may be possible.

    Returns None if there is no such choice, or highspy is not installed.
    """
    module = highs()
    alone = (options.base + options.shard + options.fixed).max(axis=1)
    kept = alone <= goal
    if module is None or not np.logical_or.reduceat(kept, options.start[:-1]).all():
        return None
    solved = _Relaxation(options, goal, kept=kept, capacity_share=capacity_share).solve(module)
    if solved is None or not np.isfinite(solved.seconds):
        return None
    return _cheapest(options, -np.round(solved.values[: len(options)], 9))


@dataclass(frozen=True, slots=True)
class _Solved:
    seconds: float
    values: Floats


class _Relaxation:
    """The linear relaxation of the aggregate problem. Its columns are the options, T, and the sums of
    `base`.

    Args:
        scale: Seconds that correspond to 1 in the problem.
        kept: If given, only these options are allowed, and the number of shards that are large
            relative to `scale` is limited per rank.
        capacity_share: Share of the memory that may be used.
    """

    def __init__(
        self,
        options: Options,
        scale: float,
        kept: NDArray[np.bool_] | None = None,
        capacity_share: float = 1,
    ) -> None:
        self._options, self._scale, self._kept = options, max(scale, 1e-12), kept
        self._capacity_share = capacity_share

    def solve(self, module: Any) -> _Solved | None:
        """Returns None if HiGHS finds no optimum; infinite seconds if there is no solution."""
        options = self._options
        count, resources = options.base.shape
        rows, step = self._rows(), count
        columns = count + 1 + resources
        cost = np.zeros(columns)
        cost[step] = 1
        upper = np.full(columns, np.inf)
        upper[:count] = 1 if self._kept is None else self._kept
        solver = make_solver(module)
        solver.passModel(as_model(module, rows, cost, np.zeros(columns), upper))
        solver.run()
        status = solver.getModelStatus()
        if status == module.HighsModelStatus.kInfeasible:
            return _Solved(np.inf, np.zeros(columns))
        if status != module.HighsModelStatus.kOptimal:
            return None
        values = np.asarray(solver.getSolution().col_value)
        return _Solved(solver.getObjectiveValue() * self._scale, values)

    def _rows(self) -> Rows:
        options, scale = self._options, self._scale
        load = options.total() / options.num_ranks / scale
        memory = options.total_memory() / (options.num_ranks * options.capacity)
        base, shard, fixed = options.base / scale, options.shard / scale, options.fixed / scale
        held = options.average_held() / scale
        capacity_share = self._capacity_share - options.average_held_memory() / options.capacity
        count, resources = load.shape
        tables = len(options.table_names)
        step, sums = count, count + 1 + np.arange(resources)
        rows = Rows()
        each = np.arange(count)
        rows.add_many(options.table, each, np.ones(count), np.ones(tables), np.ones(tables))
        for resource in range(resources):
            most = -fixed[resource] - held[resource]
            rows.add([*each, step], [*load[:, resource], -1], -np.inf, most)
            rows.add([*each, sums[resource]], [*base[:, resource], -1], 0, 0)
        for kind in range(memory.shape[1]):
            rows.add(each, memory[:, kind], -np.inf, capacity_share[kind])
        large = np.maximum.reduceat(shard, options.start[:-1], axis=0) >= _STRENGTHEN
        for table, resource in zip(*np.nonzero(large), strict=True):
            of = np.asarray(options.of(table))
            rows.add(
                [*of, step, sums[resource]],
                [*shard[of, resource], -1, 1],
                -np.inf,
                -fixed[resource],
            )
        if self._kept is not None:
            self._add_counts(rows, shard * (1 - SAFETY) / np.maximum(1 - fixed, SAFETY))
            self._add_counts(rows, options.shard_memory / options.capacity)
        return rows

    def _add_counts(self, rows: Rows, share: Floats) -> None:
        """Limits the number of shards that need more than 1 / (k + 1) of a rank.

        With f(x) = floor((k + 1)·x) / k, or x if (k + 1)·x is an integer, shares with a sum of at
        most 1 have a sum of f of at most 1: a dual feasible function (Fekete and Schepers, 2001).
        """
        options = self._options
        num_shards = options.num_shards()
        for of_kind in share.T:
            for parts in range(1, _MAX_PARTS + 1):
                times = (parts + 1) * of_kind
                whole = np.abs(times - np.round(times)) < 1e-9
                value = np.where(whole, of_kind, np.floor(times) / parts)
                used = value * num_shards / options.num_ranks
                kept = np.flatnonzero(used)
                if (value[kept] > of_kind[kept] + 1e-9).any():
                    rows.add(kept, used[kept], -np.inf, 1)


class Rows:
    """Sparse rows of a linear program."""

    def __init__(self) -> None:
        self.index: list[Any] = []
        self.value: list[Any] = []
        self.count: list[Any] = []
        self.lower: list[Any] = []
        self.upper: list[Any] = []

    def add(self, index: Any, value: Any, lower: float, upper: float) -> None:
        self.index.append(np.asarray(index, np.int32))
        self.value.append(np.asarray(value, np.float64))
        self.count.append([len(index)])
        self.lower.append([lower])
        self.upper.append([upper])

    def add_many(self, row: Ints, index: Ints, value: Floats, lower: Floats, upper: Floats) -> None:
        """Adds rows whose entries are sorted by row."""
        self.index.append(index.astype(np.int32))
        self.value.append(value)
        self.count.append(np.bincount(row, minlength=len(lower)))
        self.lower.append(lower)
        self.upper.append(upper)


def as_model(module: Any, rows: Rows, cost: Floats, lower: Floats, upper: Floats) -> Any:
    """Converts a linear program to the format of HiGHS."""
    counts = np.concatenate(rows.count)
    model = module.HighsLp()
    model.num_col_, model.num_row_ = len(cost), len(counts)
    model.col_cost_, model.col_lower_, model.col_upper_ = cost, lower, upper
    model.row_lower_, model.row_upper_ = np.concatenate(rows.lower), np.concatenate(rows.upper)
    model.a_matrix_.format_ = module.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    model.a_matrix_.index_ = np.concatenate(rows.index)
    model.a_matrix_.value_ = np.concatenate(rows.value)
    return model
