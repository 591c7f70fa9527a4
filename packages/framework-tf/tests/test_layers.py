"""Layers: shapes, kinds of inputs, combiners, models of all kinds, and invalid input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring import StepContainer, open_storage
from sparring.contracts import TableConfig as CoreTable
from sparring.errors import ClosedError, InvalidArgumentError, UnsupportedError
from sparring_tf.layers.embedding import Embedding
from sparring_tf.layers.embedding_bag import EmbeddingBag
from sparring_tf.layers.embedding_collection import EmbeddingCollection
from sparring_tf.layers.table_configs import FeatureConfig, TableConfig
from sparring_tf.optim.optimizer import Optimizer

FAR_APART = tf.constant([[7, -1, 7], [2**62, -(2**63), 2**63 - 1]], tf.int64)


def collection(**options: Any) -> EmbeddingCollection:
    users = TableConfig(name="users", embedding_dim=4)
    items = TableConfig(name="items", embedding_dim=8, combiner="sum")
    words = TableConfig(name="words", embedding_dim=4, combiner=None)
    return EmbeddingCollection(
        {
            "user": FeatureConfig(name="user", table=users),
            "viewed": FeatureConfig(name="viewed", table=items),
            "bought": FeatureConfig(name="bought", table=items),
            "title": FeatureConfig(name="title", table=words),
        },
        storage="memory",
        **options,
    )


def batch() -> dict[str, Any]:
    return {
        "user": tf.constant([71, 72], tf.int64),
        "viewed": tf.RaggedTensor.from_row_lengths(tf.constant([5, 6, 7], tf.int64), [3, 0]),
        "bought": tf.sparse.from_dense(tf.constant([[5, 0], [9, 6]], tf.int64)),
        "title": FAR_APART,
    }


def test_the_shape_is_known_before_the_graph_runs() -> None:
    layer, bag = Embedding(4, storage="memory"), EmbeddingBag(3, storage="memory")

    @tf.function(input_signature=[tf.TensorSpec([None, 5], tf.int64)])
    def look_up(ids: Any) -> Any:
        assert layer(ids).shape.as_list() == [None, 5, 4]
        assert bag(ids).shape.as_list() == [None, 3]
        return layer(ids)

    assert look_up(tf.zeros([2, 5], tf.int64)).shape == (2, 5, 4)


def test_ids_of_any_shape_and_ragged_ones_keep_it() -> None:
    layer = Embedding(4, storage="memory")
    assert layer(FAR_APART).shape == (2, 3, 4)
    assert layer(tf.constant(7, tf.int64)).shape == (4,)
    assert layer(tf.constant([7], tf.int32)).shape == (1, 4)
    ragged = layer(tf.RaggedTensor.from_row_lengths(tf.constant([1, 2, 3], tf.int64), [1, 0, 2]))
    assert ragged.row_lengths().numpy().tolist() == [1, 0, 2]
    assert ragged.values.shape == (3, 4)


def test_the_padding_id_is_zeros_masked_and_gets_no_row() -> None:
    layer = Embedding(4, padding_id=0, storage="memory", name="padded")
    optimizer = Optimizer(layer, "sgd", learning_rate=1.0)
    ids = tf.constant([[3, 0], [0, 5]], tf.int64)
    with tf.GradientTape() as tape:
        found = layer(ids)
        loss = tf.reduce_sum(found)
    optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    assert not found.numpy()[0, 1].any()
    assert found.numpy()[0, 0].any()
    assert layer.compute_mask(ids).numpy().tolist() == [[True, False], [False, True]]
    assert layer.num_rows() == {"padded": 2}


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_combiners_equal_tensorflow(combiner: str, is_weighted: bool) -> None:
    bag = EmbeddingBag(4, combiner=combiner, storage="memory", name="rows")
    dense = tf.constant([[1, 2, 2], [9, 0, 0], [4, 9, 0]], tf.int64)
    ids = tf.sparse.from_dense(dense)
    weights = tf.cast(ids.values, tf.float32) / 3 if is_weighted else tf.ones_like(ids.values)
    weights = tf.SparseTensor(ids.indices, tf.cast(weights, tf.float32), ids.dense_shape)
    single = EmbeddingBag(
        4, combiner="sum", storage="memory", container=bag.agent.container, name="rows", shared=True
    )
    table = tf.Variable(single(tf.range(10, dtype=tf.int64)))
    with tf.GradientTape() as tape:
        expected = tf.nn.embedding_lookup_sparse(table, ids, weights, combiner=combiner)
        loss = tf.reduce_sum(expected**2)
    gradient = tf.convert_to_tensor(tape.gradient(loss, table)).numpy()
    with tf.GradientTape() as tape:
        found = bag(ids, weights if is_weighted else None)
        loss = tf.reduce_sum(found**2)
    (slices,) = tape.gradient(loss, bag.trainable_variables)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    own = np.zeros((10, 4), np.float32)
    np.add.at(own, slices.indices.numpy(), slices.values.numpy())
    np.testing.assert_allclose(own, gradient, rtol=1e-4, atol=1e-7)


def test_dense_ragged_and_sparse_bags_of_the_same_ids_are_equal() -> None:
    bag = EmbeddingBag(4, storage="memory")
    dense = tf.constant([[1, 2], [3, 4]], tf.int64)
    ragged = tf.RaggedTensor.from_tensor(dense)
    sparse = tf.sparse.from_dense(dense)
    rows = bag(tf.constant([[1], [2], [3], [4]], tf.int64)).numpy()
    for ids in (dense, ragged, sparse):
        np.testing.assert_allclose(bag(ids), (rows[::2] + rows[1::2]) / 2, rtol=1e-6)


def test_a_collection_looks_up_each_feature_in_its_table() -> None:
    layer = collection()
    found = layer(batch())
    shapes = {name: tuple(each.shape) for name, each in found.items()}
    assert shapes == {"user": (2, 4), "viewed": (2, 8), "bought": (2, 8), "title": (2, 3, 4)}
    # 5 is one row of items for both features.
    assert np.array_equal(found["viewed"].numpy()[1], np.zeros(8))
    assert np.array_equal(
        found["bought"].numpy()[0],
        layer({**batch(), "viewed": tf.constant([[5], [5]], tf.int64)})["viewed"].numpy()[0],
    )


@pytest.mark.parametrize("kind", ["update method", "native optimizer"])
def test_gradients_of_a_collection_reach_the_rows_of_each_feature(kind: str) -> None:
    layer = collection()
    if kind == "update method":
        optimizer = Optimizer(layer, "sgd", learning_rate=1.0)
    else:
        optimizer = Optimizer(layer, keras.optimizers.SGD(1.0))
    before = layer(batch())
    with tf.GradientTape() as tape:
        found = layer(batch(), training=True)
        loss = tf.add_n([tf.reduce_sum(each) for each in found.values()])
    variables = layer.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)
    after = layer(batch())
    np.testing.assert_allclose(after["user"], before["user"] - 1, atol=1e-6)
    # 5 and 6 each occur twice, 7 once: 2 + 2 + 1.
    np.testing.assert_allclose(after["viewed"][0], before["viewed"][0] - 5, atol=1e-5)
    assert layer.num_rows() == {"users": 2, "items": 4, "words": 5}


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding(4, storage="memory")
        self.dense = keras.layers.Dense(1)

    def call(self, ids: Any, training: bool | None = None) -> Any:
        return self.dense(self.embedding(ids, training=training))


def functional() -> Any:
    ids = keras.Input((), dtype="int64")
    return keras.Model(ids, keras.layers.Dense(1)(Embedding(4, storage="memory")(ids)))


def sequential() -> Any:
    layers = [keras.Input((), dtype="int64"), Embedding(4, storage="memory"), keras.layers.Dense(1)]
    return keras.Sequential(layers)


@pytest.mark.parametrize(
    ("make", "jit_compile"), [(Subclassed, "auto"), (functional, False), (sequential, "auto")]
)
def test_models_of_all_kinds_are_fitted(make: Any, jit_compile: Any) -> None:
    model = make()
    optimizer = Optimizer(model, keras.optimizers.Adam(0.05))
    model.compile(optimizer=optimizer, loss="mse", jit_compile=jit_compile)
    ids = np.arange(64, dtype=np.int64) * 10**15
    targets = (np.arange(64) % 2).astype(np.float32)[:, None]
    losses = model.fit(ids, targets, batch_size=16, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < 0.2 * losses[0]
    rows = optimizer.container.num_rows("embedding")
    model.evaluate(ids + 1, targets, verbose=0)
    model.predict(ids + 1, verbose=0)
    assert optimizer.container.num_rows("embedding") == rows == 64


def test_a_model_that_was_called_before_it_got_an_optimizer_is_trained() -> None:
    """Its graph was traced with the container of that time."""
    model, shared = sequential(), StepContainer()
    other = Embedding(2, storage="memory", name="other", container=shared)
    ids = np.arange(4, dtype=np.int64)
    before = model.predict(ids, verbose=0)
    model.compile(optimizer=Optimizer([model, other], keras.optimizers.SGD(1.0)), loss="mse")
    model.fit(ids, np.ones((4, 1), np.float32), verbose=0)
    assert shared.num_rows("embedding") == 4
    assert np.abs(model.predict(ids, verbose=0) - before).max() > 0.1


def test_several_steps_of_one_execution_follow_each_other() -> None:
    results = []
    for steps in (1, 4):
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(2)
        model = sequential()
        model.compile(
            optimizer=Optimizer(model, keras.optimizers.Adagrad(0.3)),
            loss="mse",
            steps_per_execution=steps,
        )
        ids = np.arange(64, dtype=np.int64) % 8
        model.fit(ids, ids.astype(np.float32)[:, None], batch_size=8, verbose=0, shuffle=False)
        results.append(model.predict(ids, verbose=0))
    np.testing.assert_allclose(results[0], results[1], atol=1e-6)


def test_a_layer_is_created_again_from_its_config() -> None:
    admission = {"kind": "probability", "p": 0.5}
    for layer in (
        Embedding(4, padding_id=3, initializer="zeros", admission=admission, storage="memory"),
        EmbeddingBag(4, combiner="sqrtn", storage={"backend": "hkv", "policy": "none"}),
        collection(),
    ):
        config = layer.get_config()
        made = type(layer).from_config(config)
        assert made.get_config() == config


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.array([1.0, 2.0], np.float32), "int64, found dtype float32"),
        (np.array(["a"]), r"int64, found dtype string; .*sparring\.hash_strings\("),
        (np.array([True]), "int64, found dtype bool"),
    ],
)
def test_inputs_that_are_not_ids_are_rejected(inputs: Any, message: str) -> None:
    for layer in (Embedding(4, storage="memory"), EmbeddingBag(4, storage="memory")):
        with pytest.raises(InvalidArgumentError, match=message):
            layer(tf.constant(inputs))


def test_inputs_of_a_wrong_kind_are_rejected() -> None:
    sparse = tf.sparse.from_dense(tf.constant([[1, 2]], tf.int64))
    with pytest.raises(UnsupportedError, match="EmbeddingBag"):
        Embedding(4, storage="memory")(sparse)
    bag = EmbeddingBag(4, storage="memory")
    with pytest.raises(InvalidArgumentError, match=r"\(b, n\)"):
        bag(tf.zeros([2, 2, 2], tf.int64))
    with pytest.raises(InvalidArgumentError, match="weights of table"):
        bag(tf.zeros([2, 2], tf.int64), tf.zeros([2, 3]))
    ragged = tf.ragged.constant([[1], [2, 3]], dtype=tf.int64)
    with pytest.raises(InvalidArgumentError, match="2 weights for 3 ids"):
        bag(ragged, tf.ragged.constant([[1.0], [2.0]]))
    with pytest.raises(InvalidArgumentError, match="combiner"):
        EmbeddingBag(4, combiner="max")
    layer = collection()
    with pytest.raises(InvalidArgumentError, match="requires feature 'user'"):
        layer({})
    with pytest.raises(InvalidArgumentError, match="takes a dict of features and their ids"):
        layer(FAR_APART)
    with pytest.raises(InvalidArgumentError, match="did you mean 'viewed'"):
        layer({**batch(), "viewd": batch()["viewed"]})


def test_a_closed_container_raises_eagerly_and_in_a_graph() -> None:
    layer = Embedding(4, storage="memory")
    look_up = tf.function(layer)
    look_up(FAR_APART)
    layer.agent.container.close()
    with pytest.raises(tf.errors.FailedPreconditionError, match="is closed"):
        look_up(FAR_APART)
    with pytest.raises(ClosedError, match="is closed"):
        layer(FAR_APART)


def test_a_storage_of_another_dim_is_rejected() -> None:
    storage = open_storage("memory", CoreTable("embedding", 8))
    with pytest.raises(InvalidArgumentError, match="dim"):
        Embedding(4, storage=storage, container=StepContainer())


def test_a_missing_or_old_tensorflow_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparring_tf import versions

    monkeypatch.setattr(versions, "_installed", lambda: (2, 15))
    assert "2.15" in str(versions.why_unavailable())
    monkeypatch.setattr(versions, "_installed", lambda: (2, 99))
    with pytest.warns(UserWarning, match="found 2.99; install a tested version"):
        versions.check_tensorflow()
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert "KERAS_BACKEND" in str(versions.why_unavailable())


def test_the_library_is_not_linked_to_tensorflow() -> None:
    import sparring_tf

    library = next(
        path
        for folder in sparring_tf.__path__
        for path in Path(folder).glob("libsparring_lookup_ops.so")
    )
    # The file contains the name of each required library as text.
    assert b"libtensorflow" not in library.read_bytes()
