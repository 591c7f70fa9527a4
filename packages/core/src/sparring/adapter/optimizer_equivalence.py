"""Checks whether an update method may replace a framework's optimizer, because both give the same
rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.updates import UpdateMethod, UpdateRows
from sparring.contracts.tables.hyperparameters import HyperParameters

__all__ = ["is_rounding_difference", "is_equal_up_to_rounding"]

_ROWS, _STEPS = 32, 4


def is_equal_up_to_rounding(
    method: UpdateMethod,
    hyper_of: Callable[[int], HyperParameters],
    native_step: Callable[[npt.NDArray[Any], npt.NDArray[Any], int], npt.NDArray[Any]],
    initial_state: npt.NDArray[Any],
    dim: int,
) -> bool:
    """Whether a few steps of an update method and of an optimizer differ only by rounding.

    Args:
        method: the update method.
        hyper_of: returns the hyper-parameters, given the number of previous steps.
        native_step: returns the rows after the optimizer's step, given rows ``(n, dim + state_width)``,
            gradients ``(n, dim)`` and the number of previous steps. It may write into its arguments.
        initial_state: ``(state_width,)``: the optimizer's state of a new row. All arrays have its
            dtype.
        dim: number of elements of an embedding.
    """
    if method.state_width(dim) != len(initial_state):
        return False
    random = np.random.default_rng(1)

    def drawn() -> npt.NDArray[Any]:
        """Returns random numbers of many magnitudes."""
        scale = 10.0 ** random.uniform(-3, 1, (_ROWS, 1))
        return (random.standard_normal((_ROWS, dim)) * scale).astype(initial_state.dtype)

    rows = np.concatenate([drawn(), np.tile(initial_state, (_ROWS, 1))], 1)
    for number in range(_STEPS):
        gradients, before, ours = drawn(), rows.copy(), rows.copy()
        update = UpdateRows(
            keys=np.arange(_ROWS),
            rows=ours,
            embeddings=ours[:, :dim],
            state=ours[:, dim:],
            gradients=gradients.copy(),
            step=number + 1,
        )
        method.update(update, hyper_of(number))
        rows = native_step(rows, gradients, number)
        if not is_rounding_difference(before, ours, rows, dim):
            return False
    return True


def is_rounding_difference(
    before: npt.NDArray[Any], ours: npt.NDArray[Any], theirs: npt.NDArray[Any], dim: int
) -> bool:
    """Whether rows after a step differ only by rounding.

    State may differ by one unit in the last place (ulp), and embeddings by one ulp of the embedding
    plus four ulps of the step. A step consists of a square root and up to three more operations. Update
    methods use the correctly rounded root; frameworks use libraries whose root may be off by one ulp.
    """
    most = np.spacing(np.maximum(np.abs(before), np.abs(theirs)))
    most[:, :dim] += 4 * np.spacing(np.abs(theirs - before)[:, :dim])
    return bool((np.abs(ours - theirs) <= most).all())
