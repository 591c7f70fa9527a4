"""Weights of bags have the same gradients as in TensorFlow's lookups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring_tf.layers.embedding_bag import EmbeddingBag
from sparring_tf.layers.embedding_collection import EmbeddingCollection
from sparring_tf.layers.table_configs import FeatureConfig, TableConfig
from sparring_tf.optim.optimizer import Optimizer

GENERATOR = np.random.default_rng(5)
LENGTHS = [3, 0, 2, 4]
IDS = tf.RaggedTensor.from_row_lengths(GENERATOR.integers(0, 5, 9), LENGTHS)
WEIGHTS = GENERATOR.uniform(0.5, 2.0, 9).astype(np.float32)
TARGET = GENERATOR.normal(size=(4, 3)).astype(np.float32)


def loss_of(pooled: Any) -> Any:
    return tf.reduce_sum((pooled - TARGET) ** 2)


def theirs(rows: Any, weights: Any, combiner: str) -> Any:
    """Uses TensorFlow, whose lookups have no output for empty bags at the end."""
    sparse = IDS.with_values(weights).to_sparse()
    return tf.nn.embedding_lookup_sparse(rows, IDS.to_sparse(), sparse, combiner=combiner)


@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_weights_and_rows_get_the_gradients_of_tensorflow(combiner: str, is_graph: bool) -> None:
    bag = EmbeddingBag(3, combiner=combiner, storage="memory", name="rows")
    rows = tf.Variable(bag.agent.container.lookup("rows", np.arange(5)).rows)
    weights = tf.Variable(WEIGHTS)

    def differentiated() -> Any:
        with tf.GradientTape(persistent=True) as tape:
            ours = loss_of(bag(IDS, IDS.with_values(weights)))
            expected = loss_of(theirs(rows, weights, combiner))
        slices = tape.gradient(ours, bag.trainable_variables[0])
        summed = tf.math.unsorted_segment_sum(slices.values, slices.indices, 5)
        return (
            (tape.gradient(ours, weights), tape.gradient(expected, weights)),
            (summed, tf.convert_to_tensor(tape.gradient(expected, rows))),
        )

    for ours, expected in (tf.function(differentiated) if is_graph else differentiated)():
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_each_feature_of_a_collection_has_its_own_gradients() -> None:
    tables = {
        name: TableConfig(name=name, embedding_dim=dim, combiner=combiner)
        for name, dim, combiner in (("a", 3, "mean"), ("b", 2, "sum"), ("c", 3, "sum"))
    }
    features = {name: FeatureConfig(name=name, table=table) for name, table in tables.items()}
    layer = EmbeddingCollection(features, storage="memory")
    weights = {name: tf.Variable(WEIGHTS + place) for place, name in enumerate("ab")}
    with tf.GradientTape() as tape:
        given = {name: IDS.with_values(each) for name, each in weights.items()}
        found = layer(dict.fromkeys("abc", IDS), given)
        loss = tf.add_n([tf.reduce_sum(each**2) for each in found.values()])
    together = tape.gradient(loss, weights)
    for name in "ab":
        table = tables[name]
        alone = EmbeddingBag(
            table.embedding_dim, combiner=table.combiner, storage="memory", name=name
        )
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(alone(IDS, IDS.with_values(weights[name])) ** 2)
        expected = tape.gradient(loss, weights[name])
        np.testing.assert_allclose(together[name], expected, rtol=1e-5, atol=1e-7)


def test_a_model_learns_its_weights_and_the_rows() -> None:
    """Attention over a bag: a layer computes the weights."""
    ids = keras.Input((4,), dtype="int64")
    scores = keras.Input((4,))
    weights = keras.layers.Dense(4, activation="softmax", name="attention")(scores)
    bag = EmbeddingBag(3, combiner="sum", storage="memory", name="rows")
    model = keras.Model([ids, scores], bag(ids, weights))
    optimizer = Optimizer(model, keras.optimizers.Adagrad(0.5), dense=keras.optimizers.Adam(0.05))
    model.compile(optimizer=optimizer, loss="mse")
    inputs = [GENERATOR.integers(0, 9, (32, 4)), GENERATOR.normal(size=(32, 4))]
    targets = GENERATOR.normal(size=(32, 3)).astype(np.float32)
    before = model.get_layer("attention").get_weights()
    history = model.fit(inputs, targets, epochs=20, verbose=0).history["loss"]
    assert history[-1] < 0.8 * history[0]
    for old, new in zip(before, model.get_layer("attention").get_weights(), strict=True):
        assert np.abs(new - old).max() > 0.01
