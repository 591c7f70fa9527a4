"""Optimizers of one table continue its rows one after the other; alternating ones are rejected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring.errors import InvalidArgumentError
from sparring_tf.layers.embedding import Embedding
from sparring_tf.optim.optimizer import Optimizer

IDS = tf.constant([1, 2], tf.int64)


def step(layer: Any, optimizer: Any) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(IDS))
    variables = layer.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)


@pytest.mark.parametrize("sparse", [keras.optimizers.Adam(0.1), "adagrad"])
def test_alternating_optimizers_are_rejected_before_rows_change(sparse: Any) -> None:
    layer = Embedding(3, storage="memory", name="rows")
    options = {} if sparse != "adagrad" else {"learning_rate": 0.1}
    first, second = (Optimizer(layer, sparse, **options) for _ in range(2))
    step(layer, first)
    step(layer, first)
    step(layer, second)
    before = layer(IDS)
    with pytest.raises(InvalidArgumentError, match="another Optimizer has trained table 'rows'"):
        step(layer, first)
    assert np.array_equal(layer(IDS), before)
    step(layer, second)
    step(layer, Optimizer(layer, sparse, **options))


def test_optimizers_without_state_may_alternate() -> None:
    layer = Embedding(3, storage="memory", name="rows")
    before = layer(IDS)
    both = [Optimizer(layer, keras.optimizers.SGD(rate)) for rate in (0.1, 0.2)]
    for _ in range(2):
        for optimizer in both:
            step(layer, optimizer)
    np.testing.assert_allclose(before - layer(IDS), 0.6, rtol=1e-5)


def test_optimizers_of_other_tables_in_a_container_may_alternate() -> None:
    layers = [Embedding(3, storage="memory", name=name) for name in ("one", "other")]
    Optimizer(layers, keras.optimizers.Adam(0.1))  # joins both in a container
    both = [Optimizer(layer, keras.optimizers.Adam(0.1)) for layer in layers]
    for _ in range(2):
        for layer, optimizer in zip(layers, both, strict=True):
            step(layer, optimizer)
    assert [int(each.iterations) for each in both] == [2, 2]
