"""Lookups and steps in one graph are executed in their order, for every layer of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring import StepContainer
from sparring.errors import InvalidArgumentError
from sparring_tf.layers.embedding import Embedding
from sparring_tf.optim.optimizer import Optimizer

IDS = tf.constant([1, 2], tf.int64)
RATE = 0.5


def losses(layer: Any, optimizer: Any, read: Callable[[Any], Any]) -> Any:
    """Four steps in one graph. Each halves the sum of the rows' distances from 1."""

    @tf.function
    def steps() -> Any:
        found = []
        for _ in range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((layer(IDS) - 1) ** 2) / 2
            variables = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            found.append(tf.reduce_sum(read(IDS) - 1))
        return tf.stack(found)

    return steps().numpy()


def check_halved(found: Any) -> None:
    np.testing.assert_allclose(found[1:], found[:-1] * RATE, rtol=1e-5)


def test_a_layer_that_is_unfrozen_after_the_optimizer_was_built() -> None:
    layer, other = (Embedding(3, storage="memory", name=name) for name in ("late", "early"))
    layer.trainable = False
    optimizer = Optimizer([layer, other], keras.optimizers.SGD(RATE))
    optimizer.build(other.trainable_variables)
    layer.trainable = True
    check_halved(losses(layer, optimizer, layer))


def test_a_frozen_layer_that_reads_the_trained_table() -> None:
    with StepContainer() as container:
        layer, reader = (
            Embedding(3, name="rows", storage="memory", container=container, shared=True)
            for _ in range(2)
        )
        reader.trainable = False
        check_halved(losses(layer, Optimizer(layer, keras.optimizers.SGD(RATE)), reader))


@pytest.mark.parametrize("is_graph", [False, True])
def test_variables_that_the_optimizer_does_not_know_are_rejected(is_graph: bool) -> None:
    """As in Keras. No row changes, although the table is known."""
    layer, late = Embedding(3, storage="memory", name="rows"), keras.layers.Dense(1)
    late.build((None, 3))
    foreign = Embedding(3, storage="memory", name="rows")
    optimizer = Optimizer(layer, keras.optimizers.SGD(RATE))
    optimizer.build(layer.trainable_variables)

    def step_of(unknown: Any) -> Any:
        def step() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(late(layer(IDS) + foreign(IDS)))
            variables = [*layer.trainable_variables, *unknown.trainable_variables]
            optimizer.apply(tape.gradient(loss, variables), variables)

        return tf.function(step, autograph=False) if is_graph else step

    with pytest.raises(
        InvalidArgumentError, match=r"built without variable 'kernel'.*another Opti"
    ):
        step_of(late)()
    with pytest.raises(InvalidArgumentError, match=r"table 'rows' is trained.*all layers"):
        step_of(foreign)()
    assert layer.num_rows() == {"rows": 0}
