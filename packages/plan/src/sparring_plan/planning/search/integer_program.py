"""The integer program that assigns tables to ranks: all tables, or a few while the others stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparring_plan.planning.costs.costs import Floats, Ints, Span
from sparring_plan.planning.search.bound import Rows, as_model, make_solver
from sparring_plan.planning.search.placement import Placement

__all__ = ["IntegerProgram", "Solution"]


@dataclass(frozen=True, slots=True)
class Solution:
    """Values of the columns that HiGHS found, and its bound of the objective."""

    values: Floats
    bound: float


class IntegerProgram:
    """Assigns tables: the option of each table, and the ranks of its shards.

    The columns contain, for each option, whether it is used, its nodes and its ranks. The last columns
    contain the step time T or, with a goal, the time by which each rank exceeds the goal.

    Args:
        rest: Placement of all tables that stay.
        alive: Options that the other tables may use, sorted.
        ranks: Ranks that their shards may use. Options that span whole nodes may use all ranks.
        goal: Step time in seconds. With a goal, the program minimizes the times above the goal; without
            one, it minimizes T.
    """

    def __init__(
        self, rest: Placement, alive: Ints, ranks: Ints, goal: float | None = None
    ) -> None:
        options = rest.options
        self._options, self._rest, self._alive, self._goal = options, rest, alive, goal
        self._ranks = ranks
        within = options.ranks_per_node
        self._num_nodes = options.num_ranks // within
        self._inside = [np.flatnonzero(ranks // within == node) for node in range(self._num_nodes)]
        self._spans = np.asarray([int(options.shape_of(int(each)).span) for each in alive])
        nodes = np.isin(self._spans, (Span.NODES, Span.WITHIN)) * self._num_nodes
        owners = np.isin(self._spans, (Span.RANKS, Span.WITHIN)) * len(ranks)
        begin = len(alive) + np.concatenate([[0], np.cumsum(nodes + owners)])
        self._node_at, self._rank_at = begin[:-1], begin[:-1] + nodes
        self._last = int(begin[-1])
        self.num_columns = self._last + (1 if goal is None else options.num_ranks)

    def model(self, module: Any, scale: float, prices: Floats | None = None) -> Any:
        """Returns the HiGHS model; times are divided by `scale`, and `prices` of options are added."""
        options, alive, rows = self._options, self._alive, Rows()
        table = options.table[alive]
        of_table = np.unique(table, return_index=True)[1]
        for first, last in zip(of_table, [*of_table[1:], len(alive)], strict=True):
            rows.add(np.arange(first, last), np.ones(last - first), 1, 1)
        for place in np.flatnonzero(self._spans != Span.ALL):
            self._add_places(rows, int(place))
        for rank in range(options.num_ranks):
            self._add_rank(rows, rank, scale)
        cost, upper = np.zeros(self.num_columns), np.ones(self.num_columns)
        if prices is not None:
            cost[: len(alive)] = prices[alive] / scale
        cost[self._last :] = 1
        upper[self._last :] = np.inf
        model = as_model(module, rows, cost, np.zeros(len(cost)), upper)
        integer, real = module.HighsVarType.kInteger, module.HighsVarType.kContinuous
        model.integrality_ = [integer] * self._last + [real] * (len(cost) - self._last)
        return model

    def _add_places(self, rows: Rows, place: int) -> None:
        """Requires that a used option has as many nodes and ranks as its shape specifies."""
        options, span = self._options, self._spans[place]
        shape = options.shape_of(int(self._alive[place]))
        nodes = self._node_at[place] + np.arange(self._num_nodes)
        owners = self._rank_at[place] + np.arange(len(self._ranks))
        if span == Span.RANKS:
            rows.add([*owners, place], [*np.ones(len(owners)), -shape.num_places], 0, 0)
        elif span == Span.NODES:
            rows.add([*nodes, place], [*np.ones(len(nodes)), -shape.num_places], 0, 0)
        else:
            rows.add([*nodes, place], [*np.ones(len(nodes)), -1], 0, 0)
            for node, column in enumerate(nodes):
                inside = owners[self._inside[node]]
                rows.add([*inside, column], [*np.ones(len(inside)), -shape.num_places], 0, 0)

    def _add_rank(self, rows: Rows, rank: int, scale: float) -> None:
        """Adds the limits of a rank for each resource and each memory."""
        options, alive, rest = self._options, self._alive, self._rest
        at = np.searchsorted(self._ranks, rank)
        is_free = at < len(self._ranks) and self._ranks[at] == rank
        placed = self._spans == Span.NODES
        if is_free:
            placed |= self._spans != Span.ALL
        here = np.flatnonzero(placed)
        columns = np.where(
            self._spans[here] == Span.NODES,
            self._node_at[here] + rank // options.ranks_per_node,
            self._rank_at[here] + at,
        )
        step = self._last if self._goal is None else self._last + rank
        for resource in range(options.base.shape[1]):
            used = np.concatenate(
                [options.base[alive, resource], options.shard[alive[here], resource]]
            )
            index = np.concatenate([np.arange(len(alive)), columns])
            kept = np.flatnonzero(used)
            most = (self._goal or 0.0) - rest.load[rank, resource]
            rows.add([*index[kept], step], [*used[kept] / scale, -1], -np.inf, most / scale)
        for kind in range(options.base_memory.shape[1]):
            used = np.concatenate(
                [options.base_memory[alive, kind], options.shard_memory[alive[here], kind]]
            )
            index = np.concatenate([np.arange(len(alive)), columns])
            kept = np.flatnonzero(used)
            capacity = options.capacity[kind]
            left = 1 - rest.memory[rank, kind] / capacity
            rows.add(index[kept], used[kept] / capacity, -np.inf, left)

    def values_of(self, placement: Placement, scale: float) -> Floats:
        """Returns the columns of a placement."""
        values = np.zeros(self.num_columns)
        within = self._options.ranks_per_node
        place_of = {int(option): place for place, option in enumerate(self._alive)}
        for table in np.unique(self._options.table[self._alive]):
            place = place_of[int(placement.option[table])]
            values[place] = 1
            ranks, span = placement.ranks(int(table)), self._spans[place]
            if span in {Span.NODES, Span.WITHIN}:
                values[self._node_at[place] + np.unique(ranks // within)] = 1
            if span in {Span.RANKS, Span.WITHIN}:
                values[self._rank_at[place] + np.searchsorted(self._ranks, ranks)] = 1
        peaks = placement.load.max(axis=1)
        over = np.maximum(peaks - self._goal, 0) if self._goal is not None else peaks.max()
        values[self._last :] = over / scale
        return values

    def make_placement(self, values: Floats) -> Placement:
        """Returns the placement of the columns, including the tables that stay."""
        options = self._options
        placement = self._rest.copy()
        for place in np.flatnonzero(values[: len(self._alive)] > 0.5):
            span, option = self._spans[place], int(self._alive[place])
            ranks: NDArray[np.int64] = np.zeros(0, np.int64)
            if span in {Span.RANKS, Span.WITHIN}:
                at = self._rank_at[place]
                ranks = self._ranks[np.flatnonzero(values[at : at + len(self._ranks)] > 0.5)]
            elif span == Span.NODES:
                at = self._node_at[place]
                nodes = np.flatnonzero(values[at : at + self._num_nodes] > 0.5)
                within = options.ranks_per_node
                ranks = (nodes[:, None] * within + np.arange(within)).ravel()
            placement.put(int(options.table[option]), option, ranks)
        return placement

    def solve(
        self, module: Any, model: Any, start: Floats, *, nodes: int, gap: float
    ) -> Solution | None:
        """Searches from `start`, with one thread and a fixed seed; limited by nodes and not by time.

        Returns None if the search neither proves nor finds anything.
        """
        limits = {"mip_max_nodes": nodes, "mip_rel_gap": gap, "time_limit": np.inf}
        solver = make_solver(module, limits)
        solver.passModel(model)
        solution = module.HighsSolution()
        solution.col_value = list(start)
        solver.setSolution(solution)
        solver.run()
        info = solver.getInfo()
        if not np.isfinite(info.mip_dual_bound) or info.primal_solution_status != 2:
            return None
        return Solution(np.asarray(solver.getSolution().col_value), float(info.mip_dual_bound))
