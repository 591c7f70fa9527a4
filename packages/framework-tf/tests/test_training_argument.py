"""`training` of a layer: as in Keras, the tape decides what is trained."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from sparring_tf import Embedding, Optimizer

IDS = tf.constant([1, 2], tf.int64)


@pytest.mark.parametrize("training", [False, None, True])
def test_rows_train_under_a_tape_as_in_keras(training: bool | None) -> None:
    ours, theirs = (
        Embedding(4, name="item", embeddings_initializer="zeros"),
        keras.layers.Embedding(9, 4, embeddings_initializer="zeros"),
    )
    optimizers = [
        Optimizer(ours, keras.optimizers.SGD(1.0)),
        keras.optimizers.SGD(1.0),
    ]
    for layer, optimizer in zip((ours, theirs), optimizers, strict=True):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(IDS, training=training) if layer is ours else layer(IDS))
        variables = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    np.testing.assert_allclose(ours(IDS), theirs(IDS))
    assert (ours(IDS).numpy() == -1).all()


def test_validation_creates_no_row_and_keeps_nothing() -> None:
    layer = Embedding(4, name="item")
    optimizer = Optimizer(layer, keras.optimizers.SGD(1.0))
    for begin in range(0, 100, 10):
        layer(tf.range(begin, begin + 10, dtype=tf.int64), training=False)
        with tf.GradientTape():
            layer(IDS, training=False)
        assert optimizer.container.resources.num_batch_inputs == 0
    assert optimizer.container.num_rows("item") == 0
