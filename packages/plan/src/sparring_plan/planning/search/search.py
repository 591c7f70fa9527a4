"""The search: computes a bound, the placement that is closest to it, and reduces the gap."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sparring_plan.planning.costs.costs import Floats, Ints, Options
from sparring_plan.planning.search.annealing import anneal
from sparring_plan.planning.search.bound import (
    Bound,
    choose_for_goal,
    compute_aggregate_bound,
    compute_linear_bound,
    compute_threshold_bound,
)
from sparring_plan.planning.search.exact import prove
from sparring_plan.planning.search.placement import Placement, improve, place_all
from sparring_plan.planning.search.pruning import reduce_options

__all__ = ["SearchResult", "fits", "compute_prices", "search"]

_TARGET_GAP = 0.02
_TARGET_GAP_OF_LARGE = 0.04
_FEW_COLUMNS, _MAX_COLUMNS = 2_000, 12_000
"""Sizes of integer programs that are solved in seconds, and of those that are tried last."""
_LARGE = 20_000_000
"""Options × ranks above which a better plan does not justify minutes of search."""
_ENOUGH = 0.005
_MAX_OPTIONS = 100_000
"""With more options, linear programs take minutes, and the bound of NumPy is close."""
_ROUNDS_PER_TABLE, _MIN_ROUNDS, _WORK = 4, 200, 200_000
"""Rounds of local search; the last is the maximum of rounds × ranks."""
_GOALS_OF_CHOICES = (1.02, 1.1, 1.3)
_CAPACITY_SHARES = (1.0, 0.95, 0.9)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best placement that was found, and a lower bound."""

    placement: Placement
    bound: Bound
    bound_seconds: float

    @property
    def gap(self) -> float:
        """Difference between the step and the bound, relative to the bound."""
        return max(self.placement.seconds / self.bound_seconds - 1, 0.0)


def search(options: Options, pins: Placement | None = None) -> SearchResult | None:
    """Finds a plan; returns None if no plan was found that fits in memory.

    Args:
        pins: Tables that are already placed; the bound applies to plans that keep them.
    """
    if pins is not None and pins.is_complete:
        bound = compute_aggregate_bound(options)
        return SearchResult(pins, bound, pins.seconds) if pins.fits else None
    reduced = reduce_options(options, pins)
    if reduced is None:
        return None
    smaller = reduced.options
    target = _target(smaller)
    bound = compute_aggregate_bound(smaller)
    best = _place_choices(smaller, [bound.choice, _order_by_price(smaller, bound)], bound, None)
    if best is None or _gap(best, bound) > _ENOUGH:
        linear = compute_linear_bound(smaller, bound) if len(smaller) <= _MAX_OPTIONS else None
        if linear is not None:
            bound = linear
            best = _place_choices(
                smaller, [bound.choice, _order_by_price(smaller, bound)], bound, best
            )
    if best is None:
        best = _place_choices(smaller, [_smallest(smaller)], bound, None)
    if best is None:
        return None
    if _gap(best, bound) > target and len(smaller) <= _MAX_OPTIONS:
        higher = compute_threshold_bound(smaller, bound.seconds, best.seconds)
        best = _aim(smaller, replace(bound, seconds=higher), best)
        bound = replace(bound, seconds=higher)
    if _gap(best, bound) > target and len(smaller) <= _MAX_OPTIONS:
        bound = replace(
            bound, seconds=compute_threshold_bound(smaller, bound.seconds, best.seconds)
        )
    if _gap(best, bound) > target:
        best, bound = _prove_optimum(smaller, best, bound, _FEW_COLUMNS)
    if _gap(best, bound) > target:
        alive = _worth_trying(smaller, bound, best)
        best = anneal(best, alive, compute_prices(smaller, bound), bound.seconds).copy()
        best, bound = _prove_optimum(smaller, best, bound, _MAX_COLUMNS)
    whole = reduced.of_whole(best)
    return SearchResult(whole, bound, min(bound.seconds, whole.seconds))


def _prove_optimum(
    options: Options, best: Placement, bound: Bound, max_columns: int
) -> tuple[Placement, Bound]:
    """Improves the bound and the placement with the integer program, if it has at most `max_columns`
    columns."""
    proof = None
    if _gap(best, bound) > _target(options):
        proof = prove(options, best, _worth_trying(options, bound, best), max_columns)
    if proof is None:
        return best, bound
    return proof[0], replace(bound, seconds=max(bound.seconds, proof[1]))


def _place_choices(
    options: Options, choices: list[Ints], bound: Bound, best: Placement | None
) -> Placement | None:
    """Returns the best of `best` and the placements of the choices after local search."""
    for choice in choices:
        if best is not None and _gap(best, bound) < _ENOUGH:
            break
        placement = place_all(options, choice)
        if placement is not None:
            best = _improve(placement, best)
    return best


def _aim(options: Options, bound: Bound, best: Placement) -> Placement:
    """Returns a placement at least as good as `best`. Tries options for step times near the bound, with
    all of the memory or a part of it."""
    seen: set[tuple[bytes, float | None]] = set()
    for goal in _GOALS_OF_CHOICES:
        for capacity_share in _CAPACITY_SHARES:
            choice = choose_for_goal(options, bound.seconds * goal, capacity_share)
            if choice is None:
                continue
            for seconds in (None, bound.seconds * goal):
                if (choice.tobytes(), seconds) in seen:
                    continue
                seen.add((choice.tobytes(), seconds))
                placement = place_all(options, choice, seconds)
                if placement is not None:
                    best = _improve(placement, best)
                if _gap(best, bound) < _target(options):
                    return best
    return best


def _improve(placement: Placement, best: Placement | None) -> Placement:
    """Returns the better one of `best` and of `placement` after local search."""
    most = min(_ROUNDS_PER_TABLE * len(placement.option), _WORK // len(placement.load))
    improve(placement, max(_MIN_ROUNDS, most))
    if best is None or placement.seconds < best.seconds:
        return placement.copy()
    return best


def fits(options: Options) -> bool:
    """Returns whether the options with the least memory can be placed."""
    reduced = reduce_options(options)
    return (
        reduced is not None and place_all(reduced.options, _smallest(reduced.options)) is not None
    )


def _target(options: Options) -> float:
    return _TARGET_GAP if len(options) * options.num_ranks < _LARGE else _TARGET_GAP_OF_LARGE


def _gap(placement: Placement, bound: Bound) -> float:
    return placement.seconds / max(bound.seconds, 1e-15) - 1


def compute_prices(options: Options, bound: Bound) -> Floats:
    """Seconds on an average rank at the prices of the bound, (options,)."""
    load = options.total() @ bound.prices / options.num_ranks
    memory = options.total_memory() @ bound.memory_prices / options.num_ranks
    prices: Floats = load + memory
    return prices


def _order_by_price(options: Options, bound: Bound) -> Ints:
    """Returns the cheapest option of each table at the prices of the bound."""
    price = compute_prices(options, bound)
    return np.asarray([of[0] + np.argmin(price[of]) for of in _tables(options)])


def _smallest(options: Options) -> Ints:
    """Returns the option of each table that needs the least memory."""
    memory = (options.total_memory() / options.capacity).sum(axis=1)
    return np.asarray([of[0] + np.argmin(memory[of]) for of in _tables(options)])


def _tables(options: Options) -> list[Ints]:
    return [np.asarray(options.of(table)) for table in range(len(options.table_names))]


def _worth_trying(options: Options, bound: Bound, best: Placement) -> Ints:
    """Returns options that a better plan may use: with any other, the bound would exceed `best`."""
    price = compute_prices(options, bound)
    least = np.minimum.reduceat(price, options.start[:-1])
    capacity_share = options.capacity - options.average_held_memory()
    offset = (
        options.fixed + options.average_held()
    ) @ bound.prices - capacity_share @ bound.memory_prices
    with_option = least.sum() + offset + price - least[options.table]
    alive = with_option <= best.seconds * (1 + 1e-9)
    alive &= (options.base + options.shard + options.fixed).max(axis=1) <= best.seconds * (1 + 1e-9)
    alive[best.option] = True
    return np.flatnonzero(alive)
