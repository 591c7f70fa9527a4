"""Invalid input of layers and optimizers is rejected before anything changes, with the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_tf.layers.embedding import Embedding
from sparring_tf.layers.embedding_bag import EmbeddingBag
from sparring_tf.layers.embedding_collection import EmbeddingCollection
from sparring_tf.layers.table_configs import FeatureConfig, TableConfig
from sparring_tf.optim.optimizer import Optimizer

IDS, TARGETS = np.arange(8, dtype=np.int64), np.ones((8, 1), np.float32)


def model_of(**options: Any) -> Any:
    layer = Embedding(4, storage="memory", name="rows", **options)
    return keras.Sequential([keras.Input((), dtype="int64"), layer, keras.layers.Dense(1)])


@pytest.mark.parametrize("given", [0.5, "a", True, 2**63])
def test_an_invalid_padding_id_is_rejected(given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="padding_id of table 'rows' must be an id"):
        Embedding(4, padding_id=given, name="rows")


def test_a_single_id_may_be_the_padding_id() -> None:
    layer = Embedding(4, padding_id=np.int64(3), storage="memory")
    assert not layer(tf.constant(3, tf.int64)).numpy().any()
    assert layer(tf.constant(4, tf.int64)).numpy().any()


def test_inputs_that_are_not_tensors_are_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="int64 tensor, found NoneType"):
        Embedding(4, storage="memory")(None)


def in_a_sequential_model(_: Any) -> Any:
    return model_of()


def in_a_functional_model(inputs: Any) -> Any:
    layer = Embedding(4, storage="memory", name="rows")
    return keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))


def within_another(inputs: Any) -> Any:
    return keras.Model(inputs, keras.layers.Dense(1)(model_of()(inputs)))


def of_several_inputs(inputs: Any) -> Any:
    more = keras.Input((1,), name="a")
    layer = Embedding(4, storage="memory", name="rows")
    found = keras.layers.Concatenate()([more, layer(inputs)])
    return keras.Model({"a": more, "ids": inputs}, keras.layers.Dense(1)(found))


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (in_a_sequential_model, np.float32),
        (in_a_functional_model, np.float64),
        (within_another, np.float32),
        (of_several_inputs, np.float64),
    ],
)
def test_floats_for_an_input_of_int64_are_rejected_and_change_nothing(
    make: Any, dtype: Any
) -> None:
    model = make(keras.Input((), dtype="int64", name="ids"))
    model.compile(optimizer=Optimizer(model, keras.optimizers.SGD(0.1)), loss="mse")

    def fed(ids: Any) -> Any:
        return {"a": TARGETS, "ids": ids} if len(model.inputs) > 1 else ids

    container = model.optimizer.container
    for call in (
        lambda ids: model.fit(ids, TARGETS, verbose=0),
        lambda ids: model.predict(ids, verbose=0),
        model,
    ):
        with pytest.raises(
            InvalidArgumentError, match=r"table 'rows' must be int64, found dtype float"
        ):
            call(fed(IDS.astype(dtype)))
    assert container.num_rows("rows") == 0
    model.fit(fed(IDS), TARGETS, verbose=0)
    assert container.num_rows("rows") == 8


def test_floats_that_are_cast_explicitly_cause_a_warning() -> None:
    inputs = keras.Input(())
    ids = keras.ops.cast(inputs / 2, "int64")
    layer = Embedding(4, storage="memory", name="rows")
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(ids)))
    model.compile(optimizer=Optimizer(model, keras.optimizers.SGD(0.1)), loss="mse")
    with pytest.warns(UserWarning, match=r"table 'rows' come as float32 and are cast to int64"):
        model.fit(IDS.astype(np.float32), TARGETS, verbose=0)
    assert layer.num_rows() == {"rows": 4}


def test_int64_ids_cause_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    model = model_of()
    model.compile(optimizer=Optimizer(model, keras.optimizers.SGD(0.1)), loss="mse")
    model.fit(IDS, TARGETS, verbose=0)
    assert not [each for each in recwarn if "cast to int64" in str(each.message)]


def sparse_of(places: list[list[int]], values: Any) -> Any:
    return tf.SparseTensor(tf.constant(places, tf.int64), values, [2, 3])


RAGGED = tf.ragged.constant([[1], [2, 3]], dtype=tf.int64)
SPARSE = sparse_of([[0, 0], [1, 0], [1, 1]], tf.constant([1, 2, 3], tf.int64))


@pytest.mark.parametrize(
    ("ids", "weights"),
    [
        (RAGGED, tf.ragged.constant([[1.0, 2.0], [3.0]])),
        (RAGGED, tf.ragged.constant([[1.0], [2.0], [3.0]])),
        (SPARSE, sparse_of([[0, 0], [0, 1], [1, 1]], tf.constant([1.0, 2.0, 3.0]))),
    ],
    ids=["other lengths", "other bags", "other places"],
)
def test_weights_at_other_positions_than_the_ids_are_rejected(ids: Any, weights: Any) -> None:
    bag = EmbeddingBag(4, storage="memory")
    with pytest.raises(
        InvalidArgumentError, match=r"must have the (same positions|kind and shape)"
    ):
        bag(ids, weights)
    kind = tf.RaggedTensorSpec if isinstance(ids, tf.RaggedTensor) else tf.SparseTensorSpec
    signature = [kind([None, None], tf.int64), kind([None, None], tf.float32)]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="must have the same positions as the ids"
    ):
        tf.function(bag, input_signature=signature)(ids, weights)


def test_weights_at_the_same_positions_in_another_order_are_accepted() -> None:
    bag = EmbeddingBag(4, combiner="sum", storage="memory")
    weights = sparse_of([[1, 1], [0, 0], [1, 0]], tf.constant([3.0, 1.0, 2.0]))
    ordered = tf.SparseTensor(SPARSE.indices, tf.constant([1.0, 2.0, 3.0]), [2, 3])
    rows = bag(tf.constant([[1], [2], [3]], tf.int64)).numpy()
    expected = np.stack([rows[0], 2 * rows[1] + 3 * rows[2]])
    for given in (weights, ordered):
        np.testing.assert_allclose(bag(SPARSE, given), expected, rtol=1e-6)


def feature(name: str) -> FeatureConfig:
    return FeatureConfig(name=name, table=TableConfig(name=name, embedding_dim=4))


def test_features_with_different_numbers_of_examples_are_rejected() -> None:
    layer = EmbeddingCollection({"a": feature("a"), "b": feature("b")}, storage="memory")
    with pytest.raises(InvalidArgumentError, match="found a: 2, b: 1"):
        layer({"a": tf.constant([1, 2], tf.int64), "b": tf.constant([1], tf.int64)})


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([feature("a")], "found list"),
        ({"a": "a"}, "must be a sparring_tf.FeatureConfig, found str"),
        ({"a": FeatureConfig(name="a", table="a")}, "must be a sparring_tf.TableConfig, found str"),  # type: ignore[arg-type]
    ],
)
def test_missing_and_invalid_features_are_rejected(features: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        EmbeddingCollection(features)


def excluding() -> Any:
    native = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    native.exclude_from_weight_decay(var_names=["bias"])
    return native


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda model: Optimizer(model, "sgd", dense="adam"), InvalidArgumentError, "found 'adam'"),
        (
            lambda model: Optimizer(model, excluding()),
            UnsupportedError,
            "call exclude_from_weight_decay",
        ),
        (
            lambda model: Optimizer(model, "sgd").exclude_from_weight_decay(var_names=["bias"]),
            UnsupportedError,
            "call exclude_from_weight_decay",
        ),
    ],
)
def test_unsupported_optimizers_are_rejected(
    make: Callable[[Any], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make(model_of())


def test_an_optimizer_that_has_taken_steps_is_copied_without_its_state() -> None:
    used, fresh = keras.optimizers.AdamW(0.1), keras.optimizers.AdamW(0.1)
    used.apply([tf.ones([2])], [keras.Variable(np.zeros(2, np.float32))])
    found = []
    for native in (used, fresh):
        layer = Embedding(4, storage="memory", name="rows")
        optimizer = Optimizer(layer, native)
        start = layer(IDS).numpy()
        for _ in range(3):
            slices = tf.IndexedSlices(tf.ones([8, 4]), tf.constant(IDS), [0, 4])
            optimizer.apply([slices], layer.trainable_variables)
        assert int(optimizer.iterations) == 3
        found.append(layer(IDS).numpy())
        assert np.abs(found[-1] - start).min() > 0.1
    assert np.array_equal(*found)
    assert int(used.iterations) == 1


def test_more_gradients_than_variables_are_rejected() -> None:
    layer = Embedding(4, storage="memory")
    optimizer = Optimizer(layer, "sgd")
    with pytest.raises(InvalidArgumentError, match="2 gradients for 1 variables"):
        optimizer.apply([None, None], layer.trainable_variables)


class OwnScaler(keras.optimizers.LossScaleOptimizer):  # type: ignore[misc,unused-ignore]
    """A class that assumes dense gradients."""


def test_third_party_loss_scaling_is_rejected_by_name() -> None:
    model = model_of(dtype="mixed_float16")
    optimizer = OwnScaler(Optimizer(model, keras.optimizers.SGD(0.1)))
    model.compile(optimizer=optimizer, loss="mse")
    with pytest.raises(
        InvalidArgumentError, match=r"derive it from sparring_tf\.LossScaleOptimizer"
    ):
        model.fit(IDS, TARGETS, verbose=0)
    assert model.layers[0].num_rows() == {"rows": 0}


def test_strategies_of_tensorflow_are_rejected() -> None:
    with (
        tf.distribute.MirroredStrategy(["CPU:0"]).scope(),
        pytest.raises(UnsupportedError, match=r"MirroredStrategy of tf\.distribute"),
    ):
        Embedding(4)


def test_replicas_of_a_strategy_are_rejected_before_rows_change() -> None:
    """The layer and the optimizer were created outside of its scope."""
    layer = Embedding(3, storage="memory", name="rows")
    optimizer = Optimizer(layer, "sgd", learning_rate=1.0)
    optimizer.build(layer.trainable_variables)
    slices = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([1], tf.int64), [0, 3])
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    for run, operation in (
        (lambda: layer(tf.constant([1], tf.int64)), "lookup of layer 'rows'"),
        (lambda: optimizer.apply([slices], layer.trainable_variables), r"Optimizer\.apply"),
    ):
        for taken in (run, tf.function(run, autograph=False)):
            with pytest.raises(UnsupportedError, match=f"{operation}: found a MirroredStrategy"):
                strategy.run(taken)
    assert layer.num_rows() == {"rows": 0}


def in_loop(layer: Any, ids: Any) -> Any:
    found = tf.zeros([3])
    for _ in tf.range(2):
        found += tf.reduce_sum(layer(ids), 0)
    return found


def in_map(layer: Any, ids: Any) -> Any:
    return tf.map_fn(layer, ids[:, None], fn_output_signature=tf.float32)


@pytest.mark.parametrize("look_up", [in_loop, in_map, None])
def test_dense_gradients_of_rows_are_explained(look_up: Any) -> None:
    """TensorFlow's error would be that an id is out of range."""
    layer, ids = Embedding(3, storage="memory", name="rows"), tf.constant([1, 2], tf.int64)

    @tf.function
    def gradient() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids) if look_up is None else look_up(layer, ids))
        found = tape.gradient(loss, layer.trainable_variables)
        return tf.convert_to_tensor(found[0]) if look_up is None else found

    with pytest.raises(Exception, match=r"UnsupportedError: .*no fixed number of rows.*the loop"):
        gradient()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(ids))
    (found,) = tape.gradient(loss, layer.trainable_variables)
    with pytest.raises(UnsupportedError, match="no fixed number of rows"):
        tf.convert_to_tensor(found)
    # Loops that only read, and steps inside of a loop, are supported.
    assert tf.function(lambda: in_map(layer, ids))().shape == (2, 1, 3)


def test_a_keras_optimizer_after_ours_is_rejected() -> None:
    model = model_of()
    model.compile(Optimizer(model, keras.optimizers.SGD(0.1)), "mse")
    model.fit(IDS, TARGETS, verbose=0)
    before = model.get_weights()
    model.compile(keras.optimizers.Adam(), "mse")
    with pytest.raises(InvalidArgumentError, match=r"wrap it: sparring_tf\.Optimizer"):
        model.fit(IDS, TARGETS, verbose=0)
    assert all(map(np.array_equal, before, model.get_weights()))


def test_a_matrix_of_weights_is_rejected() -> None:
    layer = Embedding(3, storage="memory", name="rows")
    matrix = np.ones((4, 3), np.float32)
    with pytest.raises(
        InvalidArgumentError, match=r"found shapes \[\(4, 3\)\].*assign\('rows', ids"
    ):
        layer.set_weights([matrix])
    Optimizer(layer, "sgd").container.assign("rows", np.arange(4), matrix)
    assert np.array_equal(layer(np.arange(4)), matrix)
    layer.set_weights(layer.get_weights())
