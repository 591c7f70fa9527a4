"""Assigns shards to ranks: the largest first, then a local search on the rank that limits the step."""

from __future__ import annotations

import numpy as np

from sparring_plan.planning.costs.costs import Floats, Ints, Options, Span

__all__ = ["Placement", "improve", "place_all"]

_BASES_TRIED = 32
"""`_change` tries other options for at most this many tables on the rank that limits the step, and
for as many tables with costs on every rank."""


class Placement:
    """An option for each table and the ranks of its shards, with the resulting loads.

    `load` is (ranks, resources) in seconds, `memory` (ranks, memories) in bytes; `owns[t]` marks the
    ranks of the shards of table t, and no ranks if the table is on every rank.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.option = np.full(len(options.table_names), -1, np.int64)
        self.owns = np.zeros((len(options.table_names), options.num_ranks), bool)
        self.load: Floats = np.tile(options.fixed, (options.num_ranks, 1))
        self.memory: Floats = np.zeros((options.num_ranks, len(options.memories)))
        if options.held is not None and options.held_memory is not None:
            self.load += options.held
            self.memory += options.held_memory

    @property
    def seconds(self) -> float:
        """Time of a step: the maximum of `load` over ranks and resources."""
        return float(self.load.max())

    @property
    def is_complete(self) -> bool:
        return bool((self.option >= 0).all())

    @property
    def fits(self) -> bool:
        return bool((self.memory <= self.options.capacity).all())

    def copy(self) -> Placement:
        """Returns a copy whose loads are summed again, without accumulated rounding errors."""
        other = Placement(self.options)
        for table in np.flatnonzero(self.option >= 0):
            other.put(int(table), int(self.option[table]), self.ranks(int(table)))
        return other

    def put(self, table: int, option: int, ranks: Ints) -> None:
        """Adds a table."""
        self._add(option, ranks, 1)
        self.option[table] = option
        self.owns[table, ranks] = True

    def ranks(self, table: int) -> Ints:
        """Returns the ranks that own shards of a table, sorted."""
        return np.flatnonzero(self.owns[table])

    def take(self, table: int) -> tuple[int, Ints]:
        """Removes a table, and returns the arguments for `put` to restore it."""
        option, ranks = int(self.option[table]), self.ranks(table)
        self._add(option, ranks, -1)
        self.option[table] = -1
        self.owns[table] = False
        return option, ranks

    def _add(self, option: int, ranks: Ints, sign: int) -> None:
        options = self.options
        self.load += sign * options.base[option]
        self.memory += sign * options.base_memory[option]
        self.load[ranks] += sign * options.shard[option]
        self.memory[ranks] += sign * options.shard_memory[option]

    def best_ranks(self, option: int, goal: float | None = None) -> Ints | None:
        """Returns the ranks for the shards of an option that add the least to the step; None if they
        do not fit.

        With a `goal` in seconds, minimizes the larger share of time and memory.
        """
        options = self.options
        shape = options.shape_of(option)
        everywhere = self.memory + options.base_memory[option]
        if (everywhere > options.capacity).any():
            return None
        if shape.span is Span.ALL:
            return np.zeros(0, np.int64)
        fits = (everywhere + options.shard_memory[option] <= options.capacity).all(axis=1)
        after = self.load + options.shard[option]
        # For equal peaks, use the rank with the smaller sum; for equal sums, the first.
        peak = after.max(axis=1) + 1e-6 * after.sum(axis=1)
        if goal is not None:
            used = (everywhere + options.shard_memory[option]) / options.capacity
            peak = np.maximum(peak / goal, used.max(axis=1))
        peak = np.where(fits, peak, np.inf)
        if shape.span is Span.RANKS:
            found = np.argsort(peak, kind="stable")[: shape.num_places]
            return np.sort(found) if np.isfinite(peak[found]).all() else None
        of_node = peak.reshape(-1, options.ranks_per_node)
        if shape.span is Span.NODES:
            worst = of_node.max(axis=1)
            nodes = np.argsort(worst, kind="stable")[: shape.num_places]
            if not np.isfinite(worst[nodes]).all():
                return None
            first = np.sort(nodes)[:, None] * options.ranks_per_node
            return (first + np.arange(options.ranks_per_node)).ravel()
        order = np.argsort(of_node, axis=1, kind="stable")[:, : shape.num_places]
        worst = np.take_along_axis(of_node, order, axis=1).max(axis=1)
        node = int(np.argmin(worst))
        if not np.isfinite(worst[node]):
            return None
        return np.sort(order[node]) + node * options.ranks_per_node


def place_all(options: Options, choice: Ints, goal: float | None = None) -> Placement | None:
    """Places the chosen options, the largest first; a table that does not fit uses another option.

    With a `goal` in seconds, memory is also considered for the choice of ranks. Returns None if no
    option of a table fits.
    """
    placement = Placement(options)
    scale = goal or max(float((options.base + options.shard)[choice].max()), 1e-12)
    heavy = (options.base + options.shard)[choice].max(axis=1) / scale
    large = ((options.base_memory + options.shard_memory)[choice] / options.capacity).max(axis=1)
    everywhere = np.asarray([options.shape_of(option).span is Span.ALL for option in choice])
    for table in np.lexsort((-np.maximum(heavy, large), ~everywhere)):
        chosen = int(choice[table])
        ranks = placement.best_ranks(chosen, goal)
        if ranks is None:
            found = _least_step(placement, int(table))
            if found is None:
                return None
            chosen, ranks = found
        placement.put(int(table), chosen, ranks)
    return placement


def _least_step(placement: Placement, table: int, without: int = -1) -> tuple[int, Ints] | None:
    """Returns the option and ranks of an unplaced table with the shortest step."""
    best: tuple[float, int, Ints] | None = None
    for option in placement.options.of(table):
        ranks = placement.best_ranks(option) if option != without else None
        if ranks is None:
            continue
        placement.put(table, option, ranks)
        seconds = placement.seconds
        placement.take(table)
        if best is None or seconds < best[0]:
            best = seconds, option, ranks
    return None if best is None else best[1:]


def improve(placement: Placement, rounds: int) -> None:
    """Moves, swaps and changes options as long as the step becomes shorter, at most `rounds` times."""
    for _ in range(rounds):
        if not (_move(placement) or _swap(placement) or _change(placement)):
            return


def _on_hottest(placement: Placement) -> tuple[int, int, list[int]]:
    """Returns the rank and resource that limit the step, and the tables with a shard there, heaviest
    first."""
    rank, resource = divmod(int(np.argmax(placement.load)), placement.load.shape[1])
    tables = np.flatnonzero(placement.owns[:, rank])
    weight = placement.options.shard[placement.option[tables], resource]
    order = np.argsort(-weight, kind="stable")
    return rank, resource, [int(tables[each]) for each in order if weight[each] > 0]


def _move(placement: Placement) -> bool:
    """Moves a table from the rank that limits the step to the ranks with the least load."""
    before = placement.seconds
    rank, _, tables = _on_hottest(placement)
    for table in tables:
        option, ranks = placement.take(table)
        better = placement.best_ranks(option)
        if better is not None and rank not in better:
            placement.put(table, option, better)
            # Other ranks may be equally loaded; it is enough that these ranks improve.
            if placement.load[better].max() < before and placement.seconds <= before:
                return True
            placement.take(table)
        placement.put(table, option, ranks)
    return False


def _swap(placement: Placement) -> bool:
    """Swaps a shard of the rank that limits the step with a smaller one of another rank."""
    options, before = placement.options, placement.seconds
    rank, _, tables = _on_hottest(placement)
    single = placement.owns.sum(axis=1) == 1
    others = np.flatnonzero(single & ~placement.owns[:, rank])
    if not len(others):
        return False
    places = np.argmax(placement.owns[others], axis=1)
    theirs = options.shard[placement.option[others]]
    their_memory = options.shard_memory[placement.option[others]]
    for table in tables:
        if not single[table]:
            continue
        ours = options.shard[placement.option[table]]
        our_memory = options.shard_memory[placement.option[table]]
        here = placement.load[rank] - ours + theirs
        there = placement.load[places] - theirs + ours
        peak = np.maximum(here.max(axis=1), there.max(axis=1))
        fits = (placement.memory[rank] - our_memory + their_memory <= options.capacity).all(1)
        fits &= (placement.memory[places] - their_memory + our_memory <= options.capacity).all(1)
        peak[~fits] = np.inf
        best = int(np.argmin(peak))
        if peak[best] < before * (1 - 1e-12):
            option, ranks = placement.take(table)
            other, other_ranks = placement.take(int(others[best]))
            placement.put(table, option, other_ranks)
            placement.put(int(others[best]), other, ranks)
            return True
    return False


def _change(placement: Placement) -> bool:
    """Changes the option of a table if the step becomes shorter. Tries the tables on the rank that
    limits the step, then those with the highest costs on every rank."""
    options, before = placement.options, placement.seconds
    _, resource, tables = _on_hottest(placement)
    weight = options.base[placement.option, resource]
    heaviest = np.argsort(-weight, kind="stable")[:_BASES_TRIED]
    for table in dict.fromkeys([*tables[:_BASES_TRIED], *map(int, heaviest)]):
        option, ranks = placement.take(table)
        found = _least_step(placement, table, without=option)
        if found is not None:
            placement.put(table, *found)
            if placement.seconds < before * (1 - 1e-9):
                return True
            placement.take(table)
        placement.put(table, option, ranks)
    return False
