"""Rebuilds parts of a placement: the tables of some ranks, with the step that is aimed at in view."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparring_plan.planning.costs import Floats, Ints, Options
from sparring_plan.planning.placement import Placement, improve

__all__ = ["build", "rebuild_parts"]

_MOST_TABLES = 32
_IMPROVEMENTS = 20
_OTHER_RANKS = 2
_NEAR = 1.005
"""Steps this near to the bound are not worth a round."""


def build(options: Options, alive: Ints, prices: Floats, goal: float) -> Placement | None:
    """Places all tables: each takes the option of the least price that keeps the step under `goal`."""
    placement = Placement(options)
    if not _insert(placement, range(len(options.table_names)), alive, prices, goal):
        return None
    return placement


def rebuild_parts(
    placement: Placement, alive: Ints, prices: Floats, bound: float, rounds: int
) -> Placement:
    """Takes the tables of the rank that bounds the step and of a few others off, and inserts them again.

    Args:
        alive: options that may be taken, sorted.
        prices: (options,): seconds of an average rank.
        bound: no step is shorter; the goal of a round is between it and the step.
        rounds: how often; which other ranks are chosen follows from a fixed seed.
    """
    random = np.random.default_rng(0)
    best = placement
    for _ in range(rounds):
        if best.seconds <= bound * _NEAR:
            break
        hottest = int(np.argmax(best.load.max(axis=1)))
        others = random.choice(best.load.shape[0], _OTHER_RANKS)
        owned = best.owns[:, [hottest, *others]].any(axis=1)
        tables = random.permutation(np.flatnonzero(owned))[:_MOST_TABLES]
        changed = best.copy()
        for table in tables:
            changed.take(int(table))
        goal = bound + (best.seconds - bound) * float(random.uniform(0.2, 0.9))
        if not _insert(changed, [int(table) for table in tables], alive, prices, goal):
            continue
        if changed.seconds >= best.seconds:
            continue
        improve(changed, _IMPROVEMENTS)
        best = changed
    return best


def _insert(
    placement: Placement, tables: Sequence[int], alive: Ints, prices: Floats, goal: float
) -> bool:
    """Inserts tables, the largest first. False where one fits nowhere; some are then inserted."""
    options = placement.options
    cost = (options.base + options.shard).max(axis=1)
    cheapest = {
        table: min(_alive(options, alive, table), key=prices.__getitem__) for table in tables
    }
    for table in sorted(tables, key=lambda each: (-cost[cheapest[each]], each)):
        best: tuple[tuple[float, float, int], Ints] | None = None
        for option in _alive(options, alive, table):
            ranks = placement.best_ranks(option)
            if ranks is None:
                continue
            placement.put(table, option, ranks)
            key = max(placement.seconds, goal), float(prices[option]), option
            placement.take(table)
            if best is None or key < best[0]:
                best = key, ranks
        if best is None:
            return False
        placement.put(table, best[0][2], best[1])
    return True


def _alive(options: Options, alive: Ints, table: int) -> list[int]:
    first, last = np.searchsorted(alive, options.start[table : table + 2])
    return [int(option) for option in alive[first:last]]
