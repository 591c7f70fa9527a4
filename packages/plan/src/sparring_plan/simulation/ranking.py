"""Ranks the best plans of a search again by their simulated steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sparring_plan.planning.inputs import Calibration, PlanInputs
from sparring_plan.planning.search.placement import Placement
from sparring_plan.simulation.plan_step import PlanStep, is_replayed, simulate_plan

__all__ = ["list_neighbors", "rank_again", "replay_step"]

_MAX_TABLES, _MAX_PLANS, _MAX_OPTIONS = 12, 4, 64
_NEAR = 1.01
"""Plans are ignored if the sum of their costs exceeds the shortest sum by more than this factor,
because the gap of the result would become larger."""
_MAX_MESSAGES = 8_000
"""Maximum number of messages of a replayed plan. This many take about a tenth of a second."""


def rank_again(
    best: Placement,
    others: Callable[[], Sequence[Placement]],
    inputs: PlanInputs,
    calibration: Calibration,
) -> tuple[Placement, PlanStep | None]:
    """Returns the plan with the shortest simulated step, and that step.

    Args:
        best: Plan with the shortest sum of costs.
        others: Returns plans that are almost as good.

    Returns:
        `best` and None if its step has too many messages for a quick replay.
    """
    step = replay_step(best, inputs, calibration)
    if step is None:
        return best, None
    found = best, step
    for each in others():
        its = replay_step(each, inputs, calibration)
        # For equal times, keep the first.
        if its is not None and its.seconds < found[1].seconds * (1 - 1e-9):
            found = each, its
    return found


def replay_step(
    placement: Placement, inputs: PlanInputs, calibration: Calibration
) -> PlanStep | None:
    """Returns the simulated step of a plan; None if it has too many messages for a quick replay."""
    if not is_replayed(placement, _MAX_MESSAGES):
        return None
    step = simulate_plan(placement, inputs, calibration, max_messages=_MAX_MESSAGES)
    return step if step.method == "replay" else None


def list_neighbors(best: Placement, pinned: Sequence[int] = ()) -> list[Placement]:
    """Returns plans with one different table and an almost equal sum of costs, best first.

    Args:
        pinned: Tables that do not change.
    """
    options = best.options
    cost = (options.base + options.shard)[best.option].max(axis=1)
    tables = [
        int(each) for each in np.argsort(-cost, kind="stable") if int(each) not in set(pinned)
    ]
    found: list[tuple[float, int, Placement]] = []
    for table in tables[:_MAX_TABLES]:
        for option in options.of(table)[:_MAX_OPTIONS]:
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
    return [each for _, _, each in sorted(found, key=lambda one: one[:2])[:_MAX_PLANS]]
