"""Reduces the problem without changing the costs of the best plan.

Options that no best plan needs, and costs that all plans have in common, are removed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sparring_plan.planning.costs.costs import Floats, Ints, Options, Span
from sparring_plan.planning.search.placement import Placement

__all__ = ["ReducedOptions", "reduce_options"]


_ROUNDING = 1e-11
"""Maximum relative difference between sums of the same numbers in different orders."""


@dataclass(frozen=True, slots=True)
class ReducedOptions:
    """A reduced problem.

    Args:
        options: Options that a best plan may need, for the tables that are not yet placed.
        kept: (options,): index of each option in the original problem.
        pins: Placement in the original problem, with the tables that are already placed.
    """

    options: Options
    kept: Ints
    pins: Placement

    def of_whole(self, placement: Placement) -> Placement:
        """Converts a placement in the reduced problem to one in the original problem."""
        whole = self.pins.copy()
        for table, option in enumerate(placement.option):
            taken = int(self.kept[option])
            whole.put(int(whole.options.table[taken]), taken, placement.ranks(table))
        return whole


def reduce_options(options: Options, pins: Placement | None = None) -> ReducedOptions | None:
    """Removes options that fit on no rank, and options that are dominated by another option of the
    table.

    Every plan has at least the smallest `base` and `base_memory` of each table's options. Therefore
    the smallest `base` is moved to `fixed`, and the smallest `base_memory` is subtracted from
    `capacity`. Tables in `pins` stay on their ranks. Returns None if a table has no option that fits,
    or if one kind of memory is exhausted on every rank.
    """
    pins = Placement(options) if pins is None else pins
    held, held_memory = pins.load - options.fixed, pins.memory
    whole = replace(options, held=held, held_memory=held_memory)
    candidates = np.flatnonzero(pins.option[options.table] < 0)
    fits = np.ones(len(candidates), bool)
    while True:
        kept = candidates[fits]
        if len(np.unique(options.table[kept])) < np.count_nonzero(pins.option < 0):
            return None
        smaller = _drop_common(_subset(whole, kept))
        if (smaller.capacity <= held_memory.min(axis=0)).any():
            return None
        alone = smaller.base_memory + smaller.shard_memory
        too_large = (alone > smaller.capacity * (1 + 3 * _ROUNDING)).any(axis=1)
        if not too_large.any():
            break
        fits[np.flatnonzero(fits)[too_large]] = False
    chosen = _drop_dominated(smaller)
    found = _drop_common(_subset(smaller, chosen))
    capacity_share = found.capacity * (1 - _ROUNDING)
    return ReducedOptions(replace(found, capacity=capacity_share), kept[chosen], pins)


def _drop_dominated(options: Options) -> Ints:
    # Options of different kinds are comparable if their shards can be placed on the same ranks. One
    # rank of one node can be any rank, so `WITHIN` with one place is equivalent to `RANKS`.
    spans = np.asarray([int(shape.span) for shape in options.shapes])
    places = np.asarray([shape.num_places for shape in options.shapes])
    spans = np.where((spans == Span.WITHIN) & (places == 1), int(Span.RANKS), spans)
    group = (spans * (places.max() + 1) + places)[options.shape]
    costs = np.concatenate(
        [options.base, options.shard, options.base_memory, options.shard_memory], axis=1
    )
    kept: list[Ints] = []
    for table in range(len(options.table_names)):
        of = np.arange(options.start[table], options.start[table + 1])
        cost, same = costs[of], group[of][:, None] == group[of]
        no_more = (cost[:, None] <= cost).all(axis=2) & same
        # Keep the first of equal options.
        is_first = np.arange(len(of))[:, None] < np.arange(len(of))
        beaten: NDArray[np.bool_] = no_more & (~no_more.T | is_first)
        kept.append(of[~beaten.any(axis=0)])
    return np.concatenate(kept)


def _subset(options: Options, kept: Ints) -> Options:
    """Returns the problem with only the options `kept` and their tables."""
    tables, table = np.unique(options.table[kept], return_inverse=True)
    return replace(
        options,
        table_names=[options.table_names[each] for each in tables],
        start=np.searchsorted(table, np.arange(len(tables) + 1)),
        table=table,
        shape=options.shape[kept],
        storage=options.storage[kept],
        base=options.base[kept],
        shard=options.shard[kept],
        base_memory=options.base_memory[kept],
        shard_memory=options.shard_memory[kept],
        hits=options.hits[kept],
    )


def _drop_common(options: Options) -> Options:
    base, fixed = _split(options, options.base)
    memory, used = _split(options, options.base_memory)
    return replace(
        options,
        base=base,
        base_memory=memory,
        fixed=options.fixed + fixed,
        capacity=options.capacity - used,
    )


def _split(options: Options, base: Floats) -> tuple[Floats, Floats]:
    least = np.minimum.reduceat(base, options.start[:-1], axis=0)
    return base - least[options.table], least.sum(axis=0)
