"""Solves the whole problem as an integer program, for small cases."""

from __future__ import annotations

import numpy as np

from sparring_plan.planning.costs.costs import Ints, Options
from sparring_plan.planning.search.bound import SAFETY, highs
from sparring_plan.planning.search.integer_program import IntegerProgram
from sparring_plan.planning.search.placement import Placement

__all__ = ["prove"]

_MAX_NODES = 300


def prove(
    options: Options, before: Placement, alive: Ints, max_columns: int
) -> tuple[Placement, float] | None:
    """Searches for a better plan than `before` among the options `alive`, and bounds these plans.

    Limited by nodes of the search tree, with one thread and a fixed seed, so the result is
    deterministic. Returns None if highspy is not installed, the program has more than `max_columns`
    columns, or the search finds nothing.
    """
    module = highs()
    program = IntegerProgram(Placement(options), alive, np.arange(options.num_ranks))
    if module is None or program.num_columns > max_columns:
        return None
    scale = before.seconds
    start = program.values_of(before, scale)
    solution = program.solve(
        module, program.model(module, scale), start, nodes=_MAX_NODES, gap=1e-3
    )
    if solution is None:
        return None
    found = program.make_placement(solution.values)
    bound = min(solution.bound * scale * (1 - SAFETY), scale)
    return (found if found.fits and found.seconds < scale else before), bound
