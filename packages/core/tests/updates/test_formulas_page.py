"""The page of formulas describes the results of the update methods."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparring.contracts.storage.updates import UpdateRows
from sparring.updates.builtin import BUILTIN_METHODS, KERAS_HYPER
from sparring.updates.resolve import parse_hyper, resolve_method

PAGE = (Path(__file__).parents[4] / "docs/reference/optimizer-formulas.md").read_text()
FORMULAS: dict[str, Any] = {}
for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
    exec(block, FORMULAS)
NAMES = [*BUILTIN_METHODS, *KERAS_HYPER]
DIM = 7
OTHER_VALUES = {
    "weight_decay": 0.1, "momentum": 0.8, "nesterov": True, "lr_decay": 0.03, "beta1": 0.6,
    "beta2": 0.9, "eps": 0.05, "alpha": 0.8, "beta": 0.4, "l1": 0.3, "l2": 0.1, "l21": 0.3,
    "initial_accumulator_value": 0.2, "clip_value": 0.9, "clip_norm": 1.3,
}  # fmt: skip


def test_the_page_has_a_formula_of_each_method() -> None:
    functions = {name for name, value in FORMULAS.items() if inspect.isfunction(value)}
    assert functions == {*NAMES, "clip"}


@pytest.mark.parametrize("is_default", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_formula_gives_the_rows_of_its_method(name: str, is_default: bool) -> None:
    method, formula = resolve_method(name), FORMULAS[name]
    fields = method.hyperparameters.model_fields
    given = {} if is_default else {key: OTHER_VALUES[key] for key in fields if key != "lr"}
    hyper = parse_hyper(method, {"lr": 0.05, **given})
    h = SimpleNamespace(**hyper.model_dump())
    width = method.state_width(DIM)
    parts = [slice(at, min(at + DIM, DIM + width)) for at in range(0, DIM + width, DIM)]
    assert list(inspect.signature(formula).parameters)[len(parts) :] == ["g", "t", "h"]

    random = np.random.default_rng(1)
    row = np.concatenate([random.standard_normal(DIM), method.initial_state(DIM, hyper, float)])
    rows = row[None].copy()
    for step in range(1, 31):
        gradients = random.standard_normal((1, DIM))
        row = np.concatenate(
            formula(*[row[part] for part in parts], FORMULAS["clip"](gradients[0], h), step, h)
        )
        update = UpdateRows(
            np.zeros(1, np.int64), rows, rows[:, :DIM], rows[:, DIM:], gradients, step
        )
        method.update(update, hyper)
    np.testing.assert_allclose(rows[0], row, rtol=1e-10, atol=1e-12)
