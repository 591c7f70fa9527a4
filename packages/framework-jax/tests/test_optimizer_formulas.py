"""The formulas on the reference page are correct for optax's optimizers, also for tiny gradients."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
optax = pytest.importorskip("optax", reason="optax is not installed: pip install optax")

import jax.numpy as jnp

from sparring import StepContainer
from sparring.contracts import TableConfig
from sparring_jax import Optimizer, Tables

PAGE = (Path(__file__).parents[3] / "docs/reference/optimizer-formulas.md").read_text()
FORMULAS: dict[str, Any] = {}
for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
    exec(block, FORMULAS)
IDS, DIM, RATE = np.array([3, -1, 2**40], np.int64), 5, 0.05

# Optimizer, the page's formula, its hyper-parameters, initial value of each part of the state.
CASES: dict[str, tuple[Any, str, dict[str, float], tuple[float, ...]]] = {
    "sgd": (optax.sgd(RATE), "sgd", {}, ()),
    "momentum": (optax.sgd(RATE, momentum=0.8), "momentum", {"momentum": 0.8, "nesterov": 0}, (0,)),
    "nesterov": (
        optax.sgd(RATE, momentum=0.8, nesterov=True),
        "momentum",
        {"momentum": 0.8, "nesterov": 1},
        (0,),
    ),
    "adagrad": (optax.adagrad(RATE), "keras_adagrad", {"eps": 1e-7}, (0.1,)),
    "adam": (optax.adam(RATE), "adam", {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}, (0, 0)),
    "adamw": (
        optax.adamw(RATE, eps=1e-7, weight_decay=0.1),
        "adamw",
        {"beta1": 0.9, "beta2": 0.999, "eps": 1e-7, "weight_decay": 0.1},
        (0, 0),
    ),
    "rmsprop": (optax.rmsprop(RATE), "keras_rmsprop", {"alpha": 0.9, "eps": 1e-8}, (0,)),
    "lion": (
        optax.lion(RATE),
        "lion",
        {"beta1": 0.9, "beta2": 0.99, "weight_decay": 1e-3},
        (0,),
    ),
}


@pytest.mark.parametrize("scale", [1.0, 1e-7])
@pytest.mark.parametrize("case", CASES)
def test_arrays_of_optax_and_rows_change_by_the_formula_of_the_page(
    case: str, scale: float
) -> None:
    native, name, hyper, starts = CASES[case]
    h = SimpleNamespace(**{"lr": RATE, "weight_decay": 0.0, **hyper})
    gradients = scale * np.random.default_rng(1).standard_normal((40, len(IDS), DIM))
    # Starting from 0, small changes are not lost to rounding; weight decay requires a start.
    start = np.full((len(IDS), DIM), 0.5 if h.weight_decay else 0.0)
    parts = [start, *(np.full_like(start, each) for each in starts)]
    array = jnp.asarray(start, jnp.float32)
    state = native.init(array)
    with StepContainer() as container:
        table = TableConfig("item", DIM, initializer={"kind": "constant", "value": start[0, 0]})
        tables = Tables(table, storage="memory", container=container)
        optimizer = Optimizer(tables, native)
        for t, gradient in enumerate(gradients, 1):
            parts = list(FORMULAS[name](*parts, gradient, t, h))
            updates, state = native.update(jnp.asarray(gradient, jnp.float32), state, array)
            array = optax.apply_updates(array, updates)
            batch = tables.lookup({"item": IDS})
            padded = np.zeros(batch.rows["item"].shape, np.float32)
            padded[: len(IDS)] = gradient
            optimizer.step(batch, {"item": jnp.asarray(padded)})
        found = tables.lookup({"item": IDS}, is_training=False).rows["item"][: len(IDS)]
    moved = parts[0] - start
    # Rounding of float32 in 40 steps, for values as large as the start.
    bounds = {"rtol": 1e-4, "atol": 1e-4 * np.abs(moved).max() + 40 * 6e-8 * np.abs(start).max()}
    np.testing.assert_allclose(np.asarray(array) - start, moved, **bounds)
    np.testing.assert_allclose(np.asarray(found) - start, moved, **bounds)
