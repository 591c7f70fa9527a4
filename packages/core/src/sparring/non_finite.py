"""What to do with gradients that hold NaN or infinity. Ranks refuse a step together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from sparring import _native, kernels
from sparring.errors import NonFiniteGradientError
from sparring.resources import Accumulated

__all__ = ["FiniteOnly", "NonFinite", "finite_only"]


class NonFinite(Enum):
    """What `apply` does with gradients that hold NaN or infinity."""

    RAISE = "raise"
    """Raise before any row changes; the step's gradients are dropped."""
    SKIP = "skip"
    """Leave the rows concerned as they are, count them, and update the others."""


@dataclass(frozen=True, slots=True)
class FiniteOnly:
    """Gradients by table without those of rows that hold NaN or infinity."""

    gradients: dict[str, Accumulated]
    num_skipped: int
    """How many these were."""
    refusal: NonFiniteGradientError | None
    """Why the step must not be applied on any rank: there is one, and the policy is to raise."""


def finite_only(taken: Mapping[str, Accumulated], policy: NonFinite, step: int) -> FiniteOnly:
    """Looks at this rank's gradients, before anything is rounded to travel."""
    finite = dict(taken)
    broken = {
        name: accumulated
        for name, accumulated in taken.items()
        if not _native.is_finite(accumulated.gradients)
    }
    if policy is NonFinite.RAISE:
        return FiniteOnly(finite, 0, _error(broken, step) if broken else None)
    num_skipped = 0
    for name, accumulated in broken.items():
        is_good = kernels.finite_rows(accumulated.gradients)
        num_skipped += int(np.count_nonzero(~is_good))
        finite[name] = Accumulated(accumulated.keys[is_good], accumulated.gradients[is_good])
    return FiniteOnly(finite, num_skipped, None)


def _error(broken: Mapping[str, Accumulated], step: int) -> NonFiniteGradientError:
    name, accumulated = next(iter(broken.items()))
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
