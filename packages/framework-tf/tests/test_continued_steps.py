"""A second `Optimizer` of an update method continues the number of steps of the rows' tables."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

import sparring
from sparring_tf.layers.embedding import Embedding
from sparring_tf.optim.optimizer import Optimizer

IDS = tf.constant([3, 5], dtype=tf.int64)
FIRST, MORE = 20, 3


def make(layer: Any) -> Any:
    return Optimizer(layer, "adam", learning_rate=0.1)


def train(layer: Any, optimizer: Any, steps: range) -> np.ndarray:
    before = layer(IDS).numpy()
    for step in steps:
        weight = 1.0 + np.float32(np.random.default_rng(step).normal(size=(2, 4))) * 0.3
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(IDS) * weight)
        variables = layer.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
    return layer(IDS).numpy() - before


@pytest.mark.parametrize("way", ["second optimizer", "snapshot"])
def test_a_new_optimizer_continues_the_steps(way: str, tmp_path: Path) -> None:
    layer = Embedding(4, name="items")
    optimizer = make(layer)
    train(layer, optimizer, range(FIRST))
    one = Embedding(4, name="items")
    whole = make(one)
    train(one, whole, range(FIRST))
    expected = train(one, whole, range(FIRST, FIRST + MORE))
    if way == "second optimizer":
        optimizer = make(layer)
    else:
        optimizer.container.save(str(tmp_path / "step"))
        layer = Embedding(4, name="items")
        optimizer = make(layer)
        optimizer.container.load(str(tmp_path / "step"))
    assert np.array_equal(train(layer, optimizer, range(FIRST, FIRST + MORE)), expected)
    keras.utils.clear_session()


def second(kind: Any, steps: int = 0) -> tuple[Any, Any]:
    layer = Embedding(4, name="items")
    train(layer, Optimizer(layer, kind(0.1)), range(2))
    optimizer = Optimizer(layer, kind(0.1))
    optimizer.iterations.assign(steps)
    return layer, optimizer


@pytest.mark.parametrize("kind", ["Adam", "Adamax"])
def test_a_second_keras_optimizer_warns_that_its_iterations_are_0(kind: str) -> None:
    layer, optimizer = second(getattr(keras.optimizers, kind))
    with pytest.warns(UserWarning, match=r"state of 2 steps.*iterations\.assign\(2\)"):
        train(layer, optimizer, range(2, 3))
    keras.utils.clear_session()


def test_there_is_no_warning_if_iterations_continue_or_do_not_matter() -> None:
    made = [second(keras.optimizers.Adam, 2), second(keras.optimizers.Adagrad)]
    for layer, optimizer in made:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            train(layer, optimizer, range(2, 3))
    keras.utils.clear_session()


@pytest.mark.parametrize("kind", ["adam", "Adam"])
def test_rows_of_an_older_file_have_an_unknown_number_of_steps(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(layer: Any) -> Any:
        return make(layer) if kind == "adam" else Optimizer(layer, keras.optimizers.Adam(0.1))

    layer = Embedding(4, name="items")
    optimizer = create(layer)
    train(layer, optimizer, range(2))
    with monkeypatch.context() as patch:
        patch.setattr(sparring.adapter.TableEntry, "save_scalars", lambda _: None)
        optimizer.container.save(str(tmp_path / "step"))
    layer = Embedding(4, name="items")
    optimizer = create(layer)
    optimizer.container.load(str(tmp_path / "step"))
    with pytest.warns(UserWarning, match="unknown number of"):
        train(layer, optimizer, range(2, 3))
    keras.utils.clear_session()
