"""All layers in functional models, which compute shapes before there are ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring_tf.layers.embedding import Embedding
from sparring_tf.layers.embedding_bag import EmbeddingBag
from sparring_tf.layers.embedding_collection import EmbeddingCollection
from sparring_tf.layers.table_configs import FeatureConfig, TableConfig
from sparring_tf.optim.optimizer import Optimizer

IDS = np.arange(24, dtype=np.int64).reshape(8, 3)
TARGETS = np.linspace(0, 1, 8, dtype=np.float32)[:, None]


def of_ids() -> tuple[Any, Any, Any]:
    inputs = keras.Input((3,), dtype="int64")
    return inputs, keras.layers.Flatten()(Embedding(4)(inputs)), IDS


def of_bags() -> tuple[Any, Any, Any]:
    inputs = keras.Input((None,), dtype="int64")
    return inputs, EmbeddingBag(4)(inputs), IDS


def of_ragged_bags() -> tuple[Any, Any, Any]:
    inputs = keras.Input((None,), dtype="int64", ragged=True)
    return inputs, EmbeddingBag(4)(inputs), tf.RaggedTensor.from_tensor(IDS)


def of_sparse_bags() -> tuple[Any, Any, Any]:
    inputs = keras.Input((3,), dtype="int64", sparse=True)
    return inputs, EmbeddingBag(4)(inputs), tf.sparse.from_dense(IDS + 1)


def of_weighted_bags() -> tuple[Any, Any, Any]:
    inputs = [keras.Input((3,), dtype="int64"), keras.Input((3,))]
    return inputs, EmbeddingBag(4)(*inputs), (IDS, np.ones((8, 3), np.float32))


def of_features() -> tuple[Any, Any, Any]:
    tables = [TableConfig(name=name, embedding_dim=4, combiner="sum") for name in "ab"]
    layer = EmbeddingCollection(
        {each.name: FeatureConfig(name=each.name, table=each) for each in tables}
    )
    inputs = {"a": keras.Input((), dtype="int64"), "b": keras.Input((3,), dtype="int64")}
    found = keras.layers.Concatenate()(list(layer(inputs).values()))
    return inputs, found, {"a": IDS[:, 0], "b": IDS}


@pytest.mark.parametrize(
    "make", [of_ids, of_bags, of_ragged_bags, of_sparse_bags, of_weighted_bags, of_features]
)
def test_a_functional_model_knows_its_shapes_and_learns(make: Any) -> None:
    inputs, found, batch = make()
    assert found.shape[0] is None
    assert found.shape[-1] % 4 == 0
    model = keras.Model(inputs, keras.layers.Dense(1)(found))
    model.compile(optimizer=Optimizer(model, keras.optimizers.Adagrad(0.1)), loss="mse")
    data = tf.data.Dataset.from_tensors((batch, TARGETS)).repeat(40)
    history = model.fit(data, epochs=2, verbose=0).history["loss"]
    assert history[-1] < 0.05
