"""The search: a bound, the placement that comes nearest to it, and what separates them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparring_plan.planning.bound import Bound, aggregate_bound, linear_bound
from sparring_plan.planning.costs import Floats, Ints, Options
from sparring_plan.planning.exact import prove
from sparring_plan.planning.placement import Placement, improve, place_all
from sparring_plan.planning.rebuilding import build, rebuild_parts

__all__ = ["Found", "fits", "option_prices", "search"]

_TARGET_GAP = 0.02
_ROUNDS_PER_TABLE, _FEWEST_ROUNDS = 4, 200
_GOALS = (0.1, 0.3, 0.6)
_REBUILDS = 100


@dataclass(frozen=True, slots=True)
class Found:
    """The best placement that was found, and a bound that no other beats."""

    placement: Placement
    bound: Bound
    bound_seconds: float

    @property
    def gap(self) -> float:
        """How much longer the step is than the bound, as a share of the bound."""
        return max(self.placement.seconds / self.bound_seconds - 1, 0.0)


def search(options: Options) -> Found | None:
    """Finds a plan; None where none was found that fits the memory."""
    lagrangian = aggregate_bound(options)
    bound = linear_bound(options, lagrangian) or lagrangian
    cheapest = _priced(options, bound)
    starts = [bound.choice, lagrangian.choice, cheapest, _smallest(options)]
    best: Placement | None = None
    rounds = max(_FEWEST_ROUNDS, _ROUNDS_PER_TABLE * len(options.table_names))
    seen: set[bytes] = set()
    for choice in starts:
        if choice.tobytes() in seen or (best is not None and _gap(best, bound) < _TARGET_GAP / 4):
            continue
        seen.add(choice.tobytes())
        placement = place_all(options, choice)
        if placement is None:
            continue
        improve(placement, rounds)
        if best is None or placement.seconds < best.seconds:
            best = placement
    if best is None:
        return None
    best = best.copy()
    seconds = bound.seconds
    if _gap(best, bound) > _TARGET_GAP:
        best = _rebuilt(options, bound, best).copy()
    if _gap(best, bound) > _TARGET_GAP:
        proof = prove(options, best, _worth_trying(options, bound, best))
        if proof is not None:
            best, proven = proof
            seconds = max(seconds, proven)
    return Found(best, bound, min(seconds, best.seconds))


def fits(options: Options) -> bool:
    """True where the options that need the least memory can be placed."""
    return place_all(options, _smallest(options)) is not None


def _gap(placement: Placement, bound: Bound) -> float:
    return placement.seconds / max(bound.seconds, 1e-15) - 1


def _rebuilt(options: Options, bound: Bound, best: Placement) -> Placement:
    """A placement as good as `best` or better, built for steps between the bound and that of `best`."""
    prices = option_prices(options, bound)
    alive = _worth_trying(options, bound, best)
    for share in _GOALS:
        goal = bound.seconds + (best.seconds - bound.seconds) * share
        placement = build(options, alive, prices, goal)
        if placement is not None:
            improve(placement, _FEWEST_ROUNDS)
            best = min(best, placement, key=lambda each: each.seconds)
    return rebuild_parts(best, alive, prices, bound.seconds, _REBUILDS)


def option_prices(options: Options, bound: Bound) -> Floats:
    """(options,): seconds of an average rank, at the prices that the bound found."""
    load = options.total() @ bound.prices / options.num_ranks
    memory = options.total_memory() @ bound.memory_prices / options.num_ranks
    prices: Floats = load + memory
    return prices


def _priced(options: Options, bound: Bound) -> Ints:
    """Of each table the option that costs least at the prices of the bound."""
    price = option_prices(options, bound)
    return np.asarray([of[0] + np.argmin(price[of]) for of in _tables(options)])


def _smallest(options: Options) -> Ints:
    """Of each table the option that takes the least memory."""
    memory = (options.total_memory() / options.capacity).sum(axis=1)
    return np.asarray([of[0] + np.argmin(memory[of]) for of in _tables(options)])


def _tables(options: Options) -> list[Ints]:
    return [np.asarray(options.of(table)) for table in range(len(options.table_names))]


def _worth_trying(options: Options, bound: Bound, best: Placement) -> Ints:
    """Options that a better plan may have: the bound with any other would be above `best`."""
    price = option_prices(options, bound)
    least = np.minimum.reduceat(price, options.start[:-1])
    offset = options.fixed @ bound.prices - options.capacity @ bound.memory_prices
    with_option = least.sum() + offset + price - least[options.table]
    alive = with_option <= best.seconds * (1 + 1e-9)
    alive[best.option] = True
    return np.flatnonzero(alive)
