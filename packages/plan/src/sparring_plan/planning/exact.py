"""The whole problem as an integer programme, for cases that are small enough."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparring_plan.planning.bound import SAFETY, Rows, as_model, highs
from sparring_plan.planning.costs import Floats, Ints, Options, Span
from sparring_plan.planning.placement import Placement

__all__ = ["prove"]

_MOST_COLUMNS = 12_000
_MOST_NODES = 300


def prove(options: Options, before: Placement, alive: Ints) -> tuple[Placement, float] | None:
    """Searches for a better plan than `before`, among the options `alive`, and bounds those plans.

    Limited by nodes of the search tree, with one thread and a fixed seed: the same input has the same
    result. Returns None where highspy is missing, the case is large, or the search finds nothing.
    """
    module = highs()
    programme = _Programme(options, alive, before.seconds)
    if module is None or programme.num_columns > _MOST_COLUMNS:
        return None
    solver = module.Highs()
    settings: dict[str, Any] = {
        "output_flag": False,
        "threads": 1,
        "random_seed": 0,
        "mip_max_nodes": _MOST_NODES,
        "mip_rel_gap": 1e-3,
        "time_limit": np.inf,
    }
    for name, value in settings.items():
        solver.setOptionValue(name, value)
    rows, cost, upper = programme.build()
    model = as_model(module, rows, cost, np.zeros(len(cost)), upper)
    model.integrality_ = [module.HighsVarType.kInteger] * (len(cost) - 1) + [
        module.HighsVarType.kContinuous
    ]
    solver.passModel(model)
    start = module.HighsSolution()
    start.col_value = list(programme.values_of(before))
    solver.setSolution(start)
    solver.run()
    info = solver.getInfo()
    if not np.isfinite(info.mip_dual_bound) or info.primal_solution_status != 2:
        return None
    found = programme.placement_of(np.asarray(solver.getSolution().col_value))
    bound = min(info.mip_dual_bound * before.seconds * (1 - SAFETY), before.seconds)
    return (found if found.fits and found.seconds < before.seconds else before), bound


class _Programme:
    """Columns: for each option whether it is taken, then its nodes, then its ranks; at last T."""

    def __init__(self, options: Options, alive: Ints, scale: float) -> None:
        self._options, self._alive, self._scale = options, alive, scale
        self._num_nodes = options.num_ranks // options.ranks_per_node
        self._spans = [options.shape_of(int(option)).span for option in alive]
        self._node_at, self._rank_at = [], []
        at = len(alive)
        for span in self._spans:
            self._node_at.append(at)
            at += self._num_nodes if span in {Span.NODES, Span.WITHIN} else 0
            self._rank_at.append(at)
            at += options.num_ranks if span in {Span.RANKS, Span.WITHIN} else 0
        self.num_columns = at + 1

    def build(self) -> tuple[Rows, Floats, Floats]:
        options, alive = self._options, self._alive
        rows, step = Rows(), self.num_columns - 1
        ranks, within = options.num_ranks, options.ranks_per_node
        for table in range(len(options.table_names)):
            of = np.flatnonzero(options.table[alive] == table)
            rows.add(of, np.ones(len(of)), 1, 1)
        for place, span in enumerate(self._spans):
            shape = options.shape_of(int(alive[place]))
            nodes = self._node_at[place] + np.arange(self._num_nodes)
            owners = self._rank_at[place] + np.arange(ranks)
            if span is Span.RANKS:
                rows.add([*owners, place], [*np.ones(ranks), -shape.num_places], 0, 0)
            elif span is Span.NODES:
                rows.add([*nodes, place], [*np.ones(len(nodes)), -shape.num_places], 0, 0)
            elif span is Span.WITHIN:
                rows.add([*nodes, place], [*np.ones(len(nodes)), -1], 0, 0)
                for node, column in enumerate(nodes):
                    inside = owners[node * within : (node + 1) * within]
                    rows.add([*inside, column], [*np.ones(within), -shape.num_places], 0, 0)
        base, shard = options.base[alive] / self._scale, options.shard[alive] / self._scale
        base_memory = options.base_memory[alive] / options.capacity
        shard_memory = options.shard_memory[alive] / options.capacity
        taken = np.arange(len(alive))
        for rank in range(ranks):
            placed = np.asarray(
                [each for each, span in enumerate(self._spans) if span is not Span.ALL], np.int64
            )
            columns = np.asarray(
                [
                    self._node_at[each] + rank // within
                    if self._spans[each] is Span.NODES
                    else self._rank_at[each] + rank
                    for each in placed
                ],
                np.int64,
            )
            index = np.concatenate([taken, columns])
            for resource in range(base.shape[1]):
                values = np.concatenate([base[:, resource], shard[placed, resource]])
                fixed = options.fixed[resource] / self._scale
                rows.add([*index, step], [*values, -1], -np.inf, -fixed)
            for kind in range(base_memory.shape[1]):
                values = np.concatenate([base_memory[:, kind], shard_memory[placed, kind]])
                rows.add(index, values, -np.inf, 1)
        cost = np.zeros(self.num_columns)
        cost[step] = 1
        upper = np.ones(self.num_columns)
        upper[step] = np.inf
        return rows, cost, upper

    def values_of(self, placement: Placement) -> Floats:
        values = np.zeros(self.num_columns)
        place_of = {int(option): place for place, option in enumerate(self._alive)}
        for table, option in enumerate(placement.option):
            place = place_of[int(option)]
            values[place] = 1
            ranks = placement.ranks(table)
            if self._spans[place] in {Span.NODES, Span.WITHIN}:
                nodes = np.unique(ranks // self._options.ranks_per_node)
                values[self._node_at[place] + nodes] = 1
            if self._spans[place] in {Span.RANKS, Span.WITHIN}:
                values[self._rank_at[place] + ranks] = 1
        values[-1] = placement.seconds / self._scale
        return values

    def placement_of(self, values: Floats) -> Placement:
        options = self._options
        placement = Placement(options)
        for place in np.flatnonzero(values[: len(self._alive)] > 0.5):
            span, option = self._spans[place], int(self._alive[place])
            ranks = np.zeros(0, np.int64)
            if span in {Span.RANKS, Span.WITHIN}:
                at = self._rank_at[place]
                ranks = np.flatnonzero(values[at : at + options.num_ranks] > 0.5)
            elif span is Span.NODES:
                at = self._node_at[place]
                nodes = np.flatnonzero(values[at : at + self._num_nodes] > 0.5)
                within = options.ranks_per_node
                ranks = (nodes[:, None] * within + np.arange(within)).ravel()
            placement.put(int(options.table[option]), option, ranks)
        return placement
