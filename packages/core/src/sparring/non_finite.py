"""What to do with gradients that hold NaN or infinity, decided by all ranks together."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import numpy as np

from sparring import _native, kernels
from sparring.collective import Collective, Reduction
from sparring.errors import NonFiniteGradientError
from sparring.resources import Accumulated

__all__ = ["NonFinite", "finite_only"]


class NonFinite(Enum):
    """What `apply` does with gradients that hold NaN or infinity."""

    RAISE = "raise"
    """Raise before any row changes; the step's gradients are dropped."""
    SKIP = "skip"
    """Leave the rows concerned as they are, count them, and update the others."""


def finite_only(
    taken: Mapping[str, Accumulated], policy: NonFinite, collective: Collective, step: int
) -> tuple[dict[str, Accumulated], int]:
    """Gradients by table without those of rows that hold NaN or infinity, and how many these were.

    All ranks call it together.

    Raises:
        NonFiniteGradientError: some rank holds one, and the policy is to raise.
    """
    finite = dict(taken)
    broken = {
        name: accumulated
        for name, accumulated in taken.items()
        if not _native.is_finite(accumulated.gradients)
    }
    if policy is NonFinite.RAISE:
        # All ranks must agree to give up the step, or the others would wait in the exchange.
        if _any_rank(bool(broken), collective):
            raise _error(broken, step)
        return finite, 0
    num_skipped = 0
    for name, accumulated in broken.items():
        is_good = kernels.finite_rows(accumulated.gradients)
        num_skipped += int(np.count_nonzero(~is_good))
        finite[name] = Accumulated(accumulated.keys[is_good], accumulated.gradients[is_good])
    return finite, num_skipped


def _any_rank(here: bool, collective: Collective) -> bool:
    if collective.world_size == 1:
        return here
    flags = collective.all_reduce(np.array([here], np.int64), Reduction.MAX)
    return bool(flags[0])


def _error(broken: Mapping[str, Accumulated], step: int) -> NonFiniteGradientError:
    for name, accumulated in broken.items():
        is_good = kernels.finite_rows(accumulated.gradients)
        key = int(accumulated.keys[np.argmin(is_good)])
        return NonFiniteGradientError(
            f"step {step}: the gradients of table {name!r} hold NaN or infinity for "
            f"{int(np.count_nonzero(~is_good))} of {len(is_good)} keys, key {key} among them; no "
            "row was changed. Lower the learning rate, clip gradients, or choose "
            "non_finite='skip'",
            table=name,
            key=key,
            step=step,
        )
    return NonFiniteGradientError(
        f"step {step}: the gradients of another rank hold NaN or infinity; no row was changed",
        step=step,
    )
