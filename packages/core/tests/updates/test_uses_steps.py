"""`uses_steps` agrees with the updates of native methods."""

from __future__ import annotations

import numpy as np
import pytest

from sparring.contracts.storage.updates import UpdateRows
from sparring.updates.builtin import BUILTIN_METHODS, uses_steps
from sparring.updates.resolve import parse_hyper, resolve_method


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *((name, {}) for name in BUILTIN_METHODS if name != "lamb"),
        ("lamb", {"weight_decay": 0.1}),  # without it, only the direction of the update matters
        ("adagrad", {"lr_decay": 0.1}),
    ],
)
def test_updates_depend_on_the_step_if_the_method_uses_it(
    name: str, given: dict[str, float]
) -> None:
    method = resolve_method(name)
    hyper = parse_hyper(method, {"lr": 0.1, **given})
    found = []
    for step in (2, 50):
        values = np.full((1, 4 + method.state_width(4)), 0.5, np.float32)
        gradients = np.array([[1.0, -2.0, 0.5, 3.0]], np.float32)
        keys = np.array([7])
        method.update(
            UpdateRows(keys, values, values[:, :4], values[:, 4:], gradients, step), hyper
        )
        found.append(values)
    assert np.array_equal(*found) != uses_steps(method, hyper)
