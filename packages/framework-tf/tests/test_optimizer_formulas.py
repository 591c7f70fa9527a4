"""The formulas on the reference page are correct for Keras's optimizers, also for tiny gradients."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring_tf import Embedding, Optimizer

PAGE = (Path(__file__).parents[3] / "docs/reference/optimizer-formulas.md").read_text()
FORMULAS: dict[str, Any] = {}
for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
    exec(block, FORMULAS)
IDS, DIM, RATE = np.array([3, -1, 2**40], np.int64), 5, 0.05

# Each class of the page's table, also with other settings than the defaults.
CASES: dict[str, tuple[str, Callable[[], Any]]] = {
    "SGD": ("keras_sgd", lambda: keras.optimizers.SGD(RATE, weight_decay=0.1)),
    "momentum": ("keras_momentum", lambda: keras.optimizers.SGD(RATE, momentum=0.8)),
    "nesterov": ("keras_momentum", lambda: keras.optimizers.SGD(RATE, momentum=0.8, nesterov=True)),
    "Adagrad": ("keras_adagrad", lambda: keras.optimizers.Adagrad(RATE)),
    "Adagrad from 0": (
        "keras_adagrad",
        lambda: keras.optimizers.Adagrad(RATE, initial_accumulator_value=0, weight_decay=0.1),
    ),
    "RMSprop": ("keras_rmsprop", lambda: keras.optimizers.RMSprop(RATE, clipvalue=0.7)),
    "Adam": ("keras_adam", lambda: keras.optimizers.Adam(RATE)),
    "AdamW": ("keras_adam", lambda: keras.optimizers.AdamW(RATE, beta_1=0.7, weight_decay=0.1)),
}
STARTS = {"keras_sgd": (), "keras_momentum": (0,), "keras_rmsprop": (0,), "keras_adam": (0, 0)}
"""Formula → initial value of each part of the state."""


def slices(gradients: Any) -> Any:
    """Returns gradients of the rows of `IDS`, as returned by a tape."""
    return tf.IndexedSlices(tf.constant(gradients, tf.float32), tf.constant(IDS), [0, DIM])


def formula_rows(name: str, native: Any, start: Any, gradients: Any) -> Any:
    """Rows after the steps of the page, in float64."""
    config = native.get_config()
    beta1, beta2 = config.get("beta_1", 0.0), config.get("beta_2", 0.0)
    first = config.get("initial_accumulator_value")
    parts = [start, *(np.full_like(start, each) for each in STARTS.get(name, (first,)))]
    for t, gradient in enumerate(gradients, 1):
        rate = RATE * (np.sqrt(1 - beta2**t) / (1 - beta1**t) if name == "keras_adam" else 1)
        h = SimpleNamespace(
            lr=rate,
            weight_decay=RATE * (config["weight_decay"] or 0.0),
            momentum=config.get("momentum"),
            nesterov=config.get("nesterov"),
            eps=config.get("epsilon"),
            alpha=config.get("rho"),
            beta1=beta1,
            beta2=beta2,
            clip_value=config["clipvalue"] or 0.0,
            clip_norm=0.0,
        )
        parts = list(FORMULAS[name](*parts, FORMULAS["clip"](gradient, h), t, h))
    return parts[0]


@pytest.mark.parametrize("scale", [1.0, 1e-7])
@pytest.mark.parametrize("case", CASES)
def test_variables_of_keras_and_rows_change_by_the_formula_of_the_page(
    case: str, scale: float
) -> None:
    name, make = CASES[case]
    generator = np.random.default_rng(1)
    gradients = scale * generator.standard_normal((40, len(IDS), DIM))
    # Starting from 0, small changes are not lost to rounding; weight decay requires a start.
    has_decay = bool(make().get_config()["weight_decay"])
    start = generator.standard_normal((len(IDS), DIM)) if has_decay else np.zeros((len(IDS), DIM))
    expected = formula_rows(name, make(), start, gradients) - start

    optimizer, variable = make(), keras.Variable(start.astype(np.float32))
    layer = Embedding(DIM, name="item", storage="memory")
    ours = Optimizer(layer, make())
    assert ours.routes == {"item": name}
    ours.container.assign("item", IDS, start.astype(np.float32))
    anchors = layer.trainable_variables
    for gradient in gradients.astype(np.float32):
        optimizer.apply([tf.constant(gradient)], [variable])
        ours.apply([slices(gradient)], anchors)
    # Rounding of float32 in 40 steps, for values as large as the start.
    bounds = {"rtol": 1e-4, "atol": 1e-4 * np.abs(expected).max() + 40 * 6e-8 * np.abs(start).max()}
    np.testing.assert_allclose(variable.numpy() - start, expected, **bounds)
    np.testing.assert_allclose(layer(tf.constant(IDS)).numpy() - start, expected, **bounds)


def test_the_position_of_epsilon_matters() -> None:
    """With gradients near 1e-7, the position of epsilon changes the result."""
    gradients = 1e-7 * np.random.default_rng(1).standard_normal((40, 1, DIM))
    h = SimpleNamespace(
        lr=RATE, weight_decay=0.0, eps=1e-7, beta1=0.9, beta2=0.999, clip_value=0.0, clip_norm=0.0
    )
    moved = {}
    for name in ("adam", "sparse_adam"):
        parts: list[Any] = [np.zeros((1, DIM))] * 3
        for t, gradient in enumerate(gradients, 1):
            parts = list(FORMULAS[name](*parts, gradient, t, h))
        moved[name] = parts[0]
    theirs = formula_rows("keras_adam", keras.optimizers.Adam(RATE), np.zeros((1, DIM)), gradients)
    # Keras's Adam is the second formula, and the first differs clearly.
    np.testing.assert_allclose(theirs, moved["sparse_adam"], rtol=1e-6)
    assert np.abs(theirs - moved["adam"]).max() > 0.1 * np.abs(theirs).max()


def test_t_counts_all_steps_of_an_optimizer_of_keras() -> None:
    """A table without a gradient in a step later uses the optimizer's step number."""
    layers = [Embedding(DIM, name=name, initializer="zeros") for name in ("first", "second")]
    optimizer = Optimizer(layers, keras.optimizers.Adam(RATE))
    anchors = [layer.trainable_variables[0] for layer in layers]
    ones = np.ones((len(IDS), DIM))
    gradient = slices(ones)
    for _ in range(3):
        with pytest.warns(UserWarning, match="no gradients for second"):
            optimizer.apply([gradient, None], anchors)
    optimizer.apply([gradient, gradient], anchors)
    rate = RATE * np.sqrt(1 - 0.999**4) / (1 - 0.9**4)
    h = SimpleNamespace(lr=rate, weight_decay=0.0, eps=1e-7, beta1=0.9, beta2=0.999)
    expected = FORMULAS["keras_adam"](0 * ones, 0 * ones, 0 * ones, ones, 4, h)[0]
    np.testing.assert_allclose(layers[1](tf.constant(IDS)), expected, rtol=1e-5)
