"""`training` of a layer: as in Keras, the tape determines what is trained, and validation only reads."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring_tf import (
    DistributedEmbedding,
    Embedding,
    EmbeddingBag,
    FeatureConfig,
    Optimizer,
    TableConfig,
)

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


SEEN, UNSEEN = np.arange(1, 9).reshape(4, 2), np.arange(101, 141).reshape(20, 2)
LABELS = np.ones((20, 1), np.float32)


def model_of(kind: str) -> tuple[Any, Any]:
    """A compiled model over ids ``(b, 2)``, and its layer, which admits an id in its second step."""
    options: dict[str, Any] = {"admission": {"kind": "frequency", "k": 2}}
    if kind == "DistributedEmbedding":
        table = TableConfig("item", embedding_dim=4, **options)
        layer: Any = DistributedEmbedding(FeatureConfig("item", table))
    else:
        layer = {"Embedding": Embedding, "EmbeddingBag": EmbeddingBag}[kind](
            4, name="item", **options
        )
    inputs = keras.Input((2,), dtype="int64")
    flat = keras.layers.Flatten()(layer(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(flat))
    model.compile(optimizer=Optimizer(model, keras.optimizers.SGD(0.1)), loss="mse")
    model.fit(SEEN, LABELS[:4], epochs=3, verbose=0)
    return model, layer


def loop(model: Any, function: Any) -> None:
    for begin in range(0, len(UNSEEN), 5):
        batch = tf.constant(UNSEEN[begin : begin + 5])
        function(model, batch)


def under_tape(model: Any, batch: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(batch, training=False))
    return tape.gradient(loss, model.trainable_variables)


VALIDATIONS: dict[str, Callable[[Any], Any]] = {
    "evaluate": lambda model: model.evaluate(UNSEEN, LABELS, verbose=0),
    "predict": lambda model: model.predict(UNSEEN, verbose=0),
    "test_on_batch": lambda model: model.test_on_batch(UNSEEN, LABELS),
    "predict_on_batch": lambda model: model.predict_on_batch(UNSEEN),
    "call": lambda model: loop(model, lambda model, batch: model(batch, training=False)),
    "call without training": lambda model: loop(model, lambda model, batch: model(batch)),
    "gradients that no step takes": lambda model: loop(model, under_tape),
}


@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag", "DistributedEmbedding"])
def test_validation_changes_no_row_creates_none_and_keeps_nothing(kind: str) -> None:
    model, layer = model_of(kind)
    container = model.optimizer.container

    def stored() -> dict[int, bytes]:
        chunks = container.storage("item").scan()
        return {
            key: row.tobytes()
            for chunk in chunks
            for key, row in zip(chunk.keys.tolist(), chunk.rows, strict=True)
        }

    before = stored()
    assert before.keys() == set(SEEN.ravel().tolist())
    graph = tf.function(lambda batch: model(batch, training=False))
    in_graph = {"tf.function": lambda model: loop(model, lambda _, batch: graph(batch))}
    for name, validate in (VALIDATIONS | in_graph).items():
        validate(model)
        assert stored() == before, name
        assert container.resources.num_batch_inputs == 0, name
    # No id was counted for admission either: the first step with it stores nothing.
    model.train_on_batch(UNSEEN, LABELS)
    assert layer.num_rows() == {"item": len(before)}
    model.train_on_batch(UNSEEN, LABELS)
    assert layer.num_rows() == {"item": len(before) + UNSEEN.size}


def test_fit_with_validation_data_only_stores_rows_of_the_training_data() -> None:
    model, layer = model_of("Embedding")
    model.fit(SEEN, LABELS[:4], validation_data=(UNSEEN, LABELS), epochs=3, verbose=0)
    assert layer.num_rows() == {"item": SEEN.size}


@pytest.mark.parametrize("is_graph", [False, True])
def test_a_validation_loop_does_not_grow_in_memory(is_graph: bool) -> None:
    model, _ = model_of("EmbeddingBag")
    call = tf.function(lambda batch: model(batch, training=False)) if is_graph else model
    generator = np.random.default_rng(1)

    def validate(batches: int) -> int:
        for _ in range(batches):
            call(tf.constant(generator.integers(0, 2**40, (50, 2))))
        gc.collect()
        return sys.getallocatedblocks()

    validate(500)  # TensorFlow fills its own caches
    before = validate(50)
    # A batch that was kept would require at least one block each.
    assert validate(500) - before < 250
