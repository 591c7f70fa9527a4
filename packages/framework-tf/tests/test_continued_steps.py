"""A second `Optimizer` of an update method continues the number of steps of the rows' tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

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
