"""Rows that differ by rounding are distinguished from rows that were computed differently."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sparring.adapter.optimizer_equivalence import is_equal_up_to_rounding, is_rounding_difference
from sparring.contracts.tables.hyperparameters import MomentumHyper, SgdHyper
from sparring.updates.builtin import Momentum, Sgd

Rows = npt.NDArray[Any]


def test_a_unit_in_the_last_place_is_rounding() -> None:
    before = np.array([[1.0, 0.5, 0.25]], np.float32)
    after = before + np.float32(0.25)
    assert is_rounding_difference(before, after, after, 2)
    assert is_rounding_difference(before, np.nextafter(after, 9), after, 2)
    assert not is_rounding_difference(before, after + np.float32(1e-5), after, 2)
    assert not is_rounding_difference(before, after * np.float32("nan"), after, 2)
    # State has no step in it.
    beyond = np.nextafter(np.nextafter(after, 9), 9)
    assert is_rounding_difference(before, beyond, after, 3)
    assert not is_rounding_difference(before, beyond, after, 2)


def descended(scale: float) -> Any:
    return lambda rows, gradients, _: rows - np.asarray(scale, rows.dtype) * gradients


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_method_replaces_an_optimizer_that_computes_the_same(dtype: str) -> None:
    hyper = SgdHyper(lr=0.1)
    none = np.empty(0, dtype)
    assert is_equal_up_to_rounding(Sgd(), lambda _: hyper, descended(0.1), none, 5)
    assert not is_equal_up_to_rounding(Sgd(), lambda _: hyper, descended(0.1001), none, 5)
    # Other hyper-parameters in a later step only.
    changed = {3: SgdHyper(lr=0.2)}
    assert not is_equal_up_to_rounding(
        Sgd(), lambda n: changed.get(n, hyper), descended(0.1), none, 5
    )


def test_a_method_with_another_state_does_not_replace_an_optimizer() -> None:
    hyper = MomentumHyper(lr=0.1)
    assert not is_equal_up_to_rounding(
        Momentum(), lambda _: hyper, descended(0.1), np.empty(0, "f4"), 5
    )
