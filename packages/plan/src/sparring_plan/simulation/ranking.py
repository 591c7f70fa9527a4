"""The best few plans of a search, ranked again by their simulated steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparring_plan.planning.inputs import Calibration, PlanInputs
from sparring_plan.planning.placement import Placement
from sparring_plan.simulation.plan_step import PlanStep, simulate_plan

__all__ = ["neighbours", "rank_again"]

_MOST_TABLES, _MOST_PLANS, _MOST_OPTIONS = 12, 4, 64
_NEAR = 1.01
"""Plans whose added-up step is longer are not looked at: their gap would be too."""
_MOST_MESSAGES = 20_000
"""Of a plan that is simulated for its rank: some tenths of a second."""


def rank_again(
    best: Placement, others: Sequence[Placement], inputs: PlanInputs, calibration: Calibration
) -> tuple[Placement, PlanStep]:
    """The plan with the shortest simulated step, and that step.

    Plans whose steps are too long to be replayed quickly are not compared: `best` stays.

    Args:
        best: the plan with the shortest step, added up.
        others: that are nearly as good.
    """
    step = simulate_plan(best, inputs, calibration, most_messages=_MOST_MESSAGES)
    if step.method != "replay":
        return best, step
    found = best, step
    for each in others:
        its = simulate_plan(each, inputs, calibration, most_messages=_MOST_MESSAGES)
        # Where times are equal the first stays.
        if its.method == "replay" and its.seconds < found[1].seconds * (1 - 1e-9):
            found = each, its
    return found


def neighbours(best: Placement, pinned: Sequence[int] = ()) -> list[Placement]:
    """Plans that have one table otherwise, and whose added-up step is hardly longer, the best first.

    Args:
        pinned: tables that stay as they are.
    """
    options = best.options
    cost = (options.base + options.shard)[best.option].max(axis=1)
    tables = [int(each) for each in np.argsort(-cost, kind="stable") if int(each) not in set(pinned)]
    found: list[tuple[float, int, Placement]] = []
    for table in tables[:_MOST_TABLES]:
        for option in options.of(table)[:_MOST_OPTIONS]:
            if option == best.option[table]:
                continue
            changed = best.copy()
            changed.take(table)
            ranks = changed.best_ranks(option)
            if ranks is None:
                continue
            changed.put(table, option, ranks)
            if changed.fits and changed.seconds <= best.seconds * _NEAR:
                found.append((changed.seconds, len(found), changed))
    return [each for _, _, each in sorted(found, key=lambda one: one[:2])[:_MOST_PLANS]]
