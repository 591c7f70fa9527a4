"""Simulated annealing: repeatedly removes a few tables from their ranks and inserts them again.

A search that only accepts shorter steps stops if a better plan requires worse ones on the way. Here,
a rank may exceed the goal of time and memory at a quadratic penalty; the best plan that fits is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sparring_plan.planning.costs.costs import Floats, Ints, Options, Span
from sparring_plan.planning.search.placement import Placement, improve

__all__ = ["anneal"]

_NEAR = 1.005
"""The search ends if the step is at most this factor longer than the bound."""
_SCHEDULES = ((0.3, 20.0), (0.6, 5.0), (0.3, 1.0), (0.1, 20.0))
"""Position of the goal between the bound and the best step, and the weight of memory."""
_MAX_ROUNDS, _ROUNDS_PER_TABLE = 1500, 30
_WORK = 3e8
"""Maximum work of a schedule: options × ranks × resources."""
_TABLES_OF_A_ROUND = 4
_HEAT = 0.01
_WEIGHT_OF_PRICES = 0.02
_IMPROVEMENTS = 50
_REFRESH = 200
"""Number of rounds after which sums are recomputed, because additions and subtractions round."""


def anneal(before: Placement, alive: Ints, prices: Floats, bound: float) -> Placement:
    """Returns a placement at least as good as `before`; deterministic.

    Args:
        alive: Allowed options, sorted; includes the options of `before`.
        prices: (options,): seconds on an average rank.
        bound: Lower bound of the step time.
    """
    best = before
    for seed, (share, weight) in enumerate(_SCHEDULES):
        if best.seconds <= bound * _NEAR:
            break
        random = np.random.default_rng(seed)
        best = _Annealing(best, alive, prices, bound, share, weight).run(random)
    return best


@dataclass(slots=True)
class _Kept:
    """State to restore if a round is rejected."""

    option: Ints
    ranks: list[Ints]
    used: Floats


class _Annealing:
    """State of a search. `used`, (ranks, resources + memories), contains the shares of the goal and of
    the memory that each rank uses."""

    def __init__(
        self,
        best: Placement,
        alive: Ints,
        prices: Floats,
        bound: float,
        share: float,
        weight: float,
    ) -> None:
        options = best.options
        self._options, self._best, self._prices, self._bound = options, best, prices, bound
        self._share = share
        self._num_resources = options.base.shape[1]
        num_memories = options.base_memory.shape[1]
        self._weight = np.asarray([1.0] * self._num_resources + [weight] * num_memories)
        first = np.searchsorted(alive, options.start)
        self._alive = [alive[begin:end] for begin, end in pairwise(first)]
        each = len(alive) / len(options.table_names) * options.num_ranks * len(self._weight)
        rounds = min(_MAX_ROUNDS, _ROUNDS_PER_TABLE * len(options.table_names))
        self._rounds = int(min(rounds, _WORK / (_TABLES_OF_A_ROUND * each)))
        self._begin()

    def _begin(self) -> None:
        """Starts from the best placement with a new goal."""
        options = self._options
        self._goal = self._bound + (self._best.seconds - self._bound) * self._share
        self._base = np.concatenate(
            [options.base / self._goal, options.base_memory / options.capacity], axis=1
        )
        self._shard = np.concatenate(
            [options.shard / self._goal, options.shard_memory / options.capacity], axis=1
        )
        self._option = self._best.option.copy()
        self._ranks = [self._best.ranks(table) for table in range(len(self._option))]
        self._sum()
        self._energy = self._energy_of_all()

    def _sum(self) -> None:
        empty = Placement(self._options)
        memory = empty.memory / self._options.capacity
        self._used = np.concatenate([empty.load / self._goal, memory], axis=1)
        for table, option in enumerate(self._option):
            self._add(int(option), self._ranks[table], 1)

    def run(self, random: np.random.Generator) -> Placement:
        for round_ in range(self._rounds):
            kept = _Kept(self._option.copy(), list(self._ranks), self._used.copy())
            tables = self._tables(random)
            for table in tables:
                self._add(int(self._option[table]), self._ranks[table], -1)
            for table in tables:
                self._option[table], self._ranks[table] = self._cheapest(table)
                self._add(int(self._option[table]), self._ranks[table], 1)
            energy = self._energy_of_all()
            heat = _HEAT * (1 - round_ / self._rounds)
            if energy <= self._energy + heat * random.exponential():
                self._energy = energy
                self._keep_if_best()
                if self._best.seconds <= self._bound * _NEAR:
                    break
            else:
                self._option, self._ranks, self._used = kept.option, kept.ranks, kept.used
            if round_ % _REFRESH == 0:
                self._sum()
        return self._best

    def _tables(self, random: np.random.Generator) -> list[int]:
        """Selects a few tables of a busy rank, of another rank, and others; largest first, or in
        random order."""
        num_ranks, num_tables = self._used.shape[0], len(self._option)
        hottest = int(self._used.max(axis=1).argmax())
        rank = hottest if random.random() < 0.6 else int(random.integers(num_ranks))
        chosen = [*random.permutation(self._owned(rank))[: random.integers(1, 4)]]
        other = self._owned(int(random.integers(num_ranks)))
        chosen += [*random.permutation(other)[: random.integers(4)]]
        if random.random() < 0.5 or not chosen:
            chosen += [*random.integers(num_tables, size=random.integers(1, 3))]
        tables = list(dict.fromkeys(int(table) for table in chosen))
        if random.random() < 0.5:
            return [tables[index] for index in random.permutation(len(tables))]
        return sorted(tables, key=lambda table: (-self._size(table), table))

    def _owned(self, rank: int) -> list[int]:
        return [table for table, ranks in enumerate(self._ranks) if rank in ranks]

    def _size(self, table: int) -> float:
        of = self._alive[table]
        return float((self._base[of] + self._shard[of]).max(axis=1).min())

    def _cheapest(self, table: int) -> tuple[int, Ints]:
        """Returns the option and ranks that add the least energy."""
        options, of = self._options, self._alive[table]
        with_base = self._used[None] + self._base[of][:, None]
        without = self._energy_of(with_base).sum(axis=2)
        added = self._energy_of(with_base + self._shard[of][:, None]).sum(axis=2) - without
        energies = without.sum(axis=1) + _WEIGHT_OF_PRICES * self._prices[of] / self._goal
        best: tuple[float, int, Ints] | None = None
        for index, option in enumerate(of):
            ranks = _least(added[index], options, int(option))
            energy = float(energies[index] + added[index, ranks].sum())
            if best is None or energy < best[0]:
                best = energy, int(option), ranks
        assert best is not None
        return best[1:]

    def _energy_of(self, used: Floats) -> Floats:
        over = np.maximum(used - 1, 0)
        square = used * used
        # The last term balances ranks that are all below the goal.
        energy: Floats = (4 * over * over + 0.3 * over + 1e-3 * square * square) * self._weight
        return energy

    def _energy_of_all(self) -> float:
        prices = float(self._prices[self._option].sum()) / self._goal
        return float(self._energy_of(self._used).sum()) + _WEIGHT_OF_PRICES * prices

    def _add(self, option: int, ranks: Ints, sign: int) -> None:
        self._used += sign * self._base[option]
        self._used[ranks] += sign * self._shard[option]

    def _keep_if_best(self) -> None:
        resources = self._num_resources
        seconds = float(self._used[:, :resources].max()) * self._goal
        if seconds >= self._best.seconds * (1 - 1e-6) or (self._used[:, resources:] > 1).any():
            return
        found = Placement(self._options)
        for table, option in enumerate(self._option):
            found.put(table, int(option), self._ranks[table])
        if found.fits and found.seconds < self._best.seconds:
            improve(found, _IMPROVEMENTS)
            self._best = found.copy()
            self._begin()


def _least(added: Floats, options: Options, option: int) -> Ints:
    """Returns the ranks where the shards of an option add the least energy."""
    shape, within = options.shape_of(option), options.ranks_per_node
    if shape.span is Span.ALL:
        return np.zeros(0, np.int64)
    if shape.span is Span.RANKS:
        if shape.num_places == 1:
            return np.asarray([added.argmin()])
        return np.sort(np.argsort(added, kind="stable")[: shape.num_places])
    of_node = added.reshape(-1, within)
    if shape.span is Span.NODES:
        nodes = np.sort(np.argsort(of_node.sum(axis=1), kind="stable")[: shape.num_places])
        return (nodes[:, None] * within + np.arange(within)).ravel()
    order = np.argsort(of_node, axis=1, kind="stable")[:, : shape.num_places]
    node = int(np.take_along_axis(of_node, order, axis=1).sum(axis=1).argmin())
    return np.sort(order[node]) + node * within
