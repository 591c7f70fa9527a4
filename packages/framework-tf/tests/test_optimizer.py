"""`Optimizer`: Keras's optimizers update rows like a dense variable."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring.errors import (
    InvalidArgumentError,
    NonFiniteGradientError,
    UnsupportedError,
)
from sparring_tf.layers.embedding import Embedding
from sparring_tf.lookup.exchanged_lookup import own_errors
from sparring_tf.optim.loss_scaling import LossScaleOptimizer
from sparring_tf.optim.optimizer import Optimizer

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "SGD with momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "Adam": lambda: keras.optimizers.Adam(0.05),
    "Adam with amsgrad": lambda: keras.optimizers.Adam(0.05, amsgrad=True),
    "AdamW": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.9, centered=True),
    "Ftrl": lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
    "Lion": lambda: keras.optimizers.Lion(0.01),
    "Adamax": lambda: keras.optimizers.Adamax(0.05),
    "Adadelta": lambda: keras.optimizers.Adadelta(1.0),
    "clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=0.5),
    "a schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5)
    ),
}
NUM_IDS, DIM = 12, 4
ALL_IDS = np.arange(NUM_IDS, dtype=np.int64) * 10**16


def trained(layer: Any, optimizer: Any, ids: Any, steps: int) -> None:
    """Steps towards targets that are drawn again in each step."""
    generator = np.random.default_rng(7)
    for _ in range(steps):
        targets = generator.normal(size=(len(ids), DIM)).astype(np.float32)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((layer(tf.constant(ids)) - targets) ** 2)
        variables = layer.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)


class Dense(keras.layers.Layer):
    """All rows in one variable, with all rows in each batch."""

    def __init__(self, start: Any) -> None:
        super().__init__()
        self.rows = self.add_weight(shape=start.shape, initializer="zeros")
        self.rows.assign(start)

    def call(self, _: Any) -> Any:
        return self.rows.value


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_change_like_a_dense_variable(name: str) -> None:
    layer = Embedding(DIM, storage="memory")
    dense = Dense(layer(tf.constant(ALL_IDS)).numpy())
    trained(layer, Optimizer(layer, OPTIMIZERS[name]()), ALL_IDS, 10)
    trained(dense, OPTIMIZERS[name](), ALL_IDS, 10)
    np.testing.assert_allclose(layer(tf.constant(ALL_IDS)), dense.rows.numpy(), atol=2e-5)


@pytest.mark.parametrize(
    "make", [lambda: keras.optimizers.SGD(0.1), lambda: keras.optimizers.Adagrad(0.1)]
)
def test_rows_equal_the_embedding_of_keras_after_200_steps(make: Any) -> None:
    ours = Embedding(DIM, storage="memory")
    theirs = keras.layers.Embedding(50, DIM)
    theirs.build()
    theirs.embeddings.assign(ours(tf.range(50, dtype=tf.int64)))
    optimizers = Optimizer(ours, make()), make()
    generator = np.random.default_rng(3)
    for _ in range(200):
        # Each id once: for repeated ids, Keras squares each gradient instead of their sum.
        ids = generator.permutation(50)[:20]
        targets = generator.normal(size=(20, DIM)).astype(np.float32)
        for layer, optimizer in zip((ours, theirs), optimizers, strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((layer(tf.constant(ids)) - targets) ** 2)
            variables = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
    every = tf.range(50, dtype=tf.int64)
    np.testing.assert_allclose(ours(every), theirs(every), atol=1e-5)


def test_only_rows_that_were_looked_up_decay() -> None:
    layer = Embedding(DIM, storage="memory", initializer={"kind": "constant", "value": 1.0})
    optimizer = Optimizer(layer, keras.optimizers.AdamW(0.1, weight_decay=0.5))
    # With negligible gradients, only decay changes a row.
    for num_ids in (NUM_IDS, 2, 2):
        nothing = tf.zeros([num_ids, DIM])
        slices = tf.IndexedSlices(nothing, tf.constant(ALL_IDS[:num_ids]), [0, DIM])
        optimizer.apply([slices], layer.trainable_variables)
    after = layer(tf.constant(ALL_IDS)).numpy()
    np.testing.assert_allclose(after[2:], 0.95, rtol=1e-6)
    np.testing.assert_allclose(after[:2], 0.95**3, rtol=1e-6)


@pytest.mark.parametrize("sparse", ["adagrad", "keras"])
def test_accumulated_gradients_make_one_step_of_their_mean(sparse: str) -> None:
    def made(layer: Any, **options: Any) -> Optimizer:
        if sparse == "keras":
            return Optimizer(layer, keras.optimizers.SGD(0.1), **options)
        return Optimizer(layer, sparse, learning_rate=0.1, **options)

    parts = Embedding(DIM, storage="memory", seed=1)
    optimizer = made(parts, gradient_accumulation_steps=2)
    slices = [
        tf.IndexedSlices(tf.ones([2, DIM]) * scale, tf.constant([3, place], tf.int64), [0, DIM])
        for place, scale in ((5, 1.0), (6, 3.0))
    ]
    start = parts(tf.constant([3, 5, 6], tf.int64)).numpy()
    optimizer.apply([slices[0]], parts.trainable_variables)
    assert parts.num_rows() == {parts.name: 0}
    optimizer.apply([slices[1]], parts.trainable_variables)
    assert int(optimizer.iterations) == 1
    moved = start - parts(tf.constant([3, 5, 6], tf.int64)).numpy()
    expected = [0.2, 0.05, 0.15] if sparse == "keras" else [0.1, 0.1, 0.1]
    np.testing.assert_allclose(moved, np.repeat(expected, DIM).reshape(3, DIM), rtol=1e-3)


def test_the_learning_rate_can_be_set_between_steps() -> None:
    layer = Embedding(DIM, storage="memory")
    model = keras.Sequential([keras.Input((), dtype="int64"), layer, keras.layers.Dense(1)])
    model.compile(optimizer=Optimizer(model, keras.optimizers.SGD(0.1)), loss="mse")
    data = ALL_IDS, np.ones((NUM_IDS, 1), np.float32)
    model.fit(*data, verbose=0)
    model.optimizer.learning_rate = 0.0
    before = [layer(tf.constant(ALL_IDS)).numpy(), model.layers[-1].kernel.numpy()]
    model.fit(*data, verbose=0)
    after = [layer(tf.constant(ALL_IDS)).numpy(), model.layers[-1].kernel.numpy()]
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_trains_rows_in_float32(policy: str) -> None:
    layer = Embedding(DIM, storage="memory", dtype=policy)
    head = keras.layers.Dense(1, dtype=policy)
    model = keras.Sequential([keras.Input((), dtype="int64"), layer, head])
    optimizer = Optimizer(model, keras.optimizers.SGD(0.5))
    if policy == "mixed_float16":
        wrapped = LossScaleOptimizer(optimizer, initial_scale=2.0**10)
    else:
        wrapped = optimizer
    model.compile(optimizer=wrapped, loss="mse")
    assert layer(tf.constant(ALL_IDS)).dtype.name == policy.removeprefix("mixed_")
    losses = model.fit(ALL_IDS, np.ones((NUM_IDS, 1), np.float32), epochs=20, verbose=0)
    assert losses.history["loss"][-1] < 0.05
    assert layer.num_rows() == {layer.name: NUM_IDS}
    assert optimizer.container.storage(layer.name).table.dtype == "float32"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (keras.optimizers.Adafactor, "cannot update rows"),
        (keras.optimizers.Lamb, "rows that are updated together"),
        (lambda: keras.optimizers.SGD(clipnorm=1.0), "clipvalue"),
        (lambda: keras.optimizers.SGD(use_ema=True), "use_ema"),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "wrap"),
    ],
)
def test_an_optimizer_that_does_not_work_row_by_row_is_rejected(make: Any, reason: str) -> None:
    layer = Embedding(DIM, storage="memory")
    before = layer(tf.constant(ALL_IDS)).numpy()
    with pytest.raises(UnsupportedError, match=reason):
        Optimizer(layer, make())
    assert np.array_equal(layer(tf.constant(ALL_IDS)), before)
    # Nothing was changed: another optimizer finds the table in its original state.
    optimizer = Optimizer(layer, keras.optimizers.SGD(0.1))
    assert optimizer.container.tables[layer.name].state_method == "keras.SGD"
    trained(layer, optimizer, ALL_IDS, 1)
    assert layer.num_rows() == {layer.name: NUM_IDS}


def test_invalid_arguments_are_rejected() -> None:
    layer = Embedding(DIM, storage="memory")
    for build, message in (
        (lambda: Optimizer(layer, keras.optimizers.SGD), "takes a Keras optimizer"),
        (lambda: Optimizer(layer, keras.optimizers.SGD(), lr=1), "pass hyper-parameters"),
        (lambda: Optimizer(keras.layers.Dense(1), "sgd"), "layers have no tables"),
        (lambda: Optimizer("layer", "sgd"), "models and layers"),
        (lambda: Optimizer(layer, "sgd", gradient_accumulation_steps=0), "positive integer"),
        (lambda: Optimizer(layer, "sgd", tables={"x": {"lr": 1.0}}), "updates no table 'x'"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            build()


def test_a_method_without_an_optimizer_for_ordinary_variables_is_rejected() -> None:
    model = keras.Sequential(
        [keras.Input((), dtype="int64"), Embedding(DIM, storage="memory"), keras.layers.Dense(1)]
    )
    model.compile(optimizer=Optimizer(model, "sgd", learning_rate=0.1), loss="mse")
    with pytest.raises(InvalidArgumentError, match="dense=keras"):
        model.fit(ALL_IDS, np.ones((NUM_IDS, 1), np.float32), verbose=0)


def test_a_non_finite_gradient_changes_neither_rows_nor_variables() -> None:
    layer = Embedding(DIM, storage="memory")
    model = keras.Sequential([keras.Input((), dtype="int64"), layer, keras.layers.Dense(1)])
    model.compile(optimizer=Optimizer(model, keras.optimizers.SGD(0.1)), loss="mse")
    targets = np.ones((NUM_IDS, 1), np.float32)
    model.fit(ALL_IDS, targets, verbose=0)
    before = [each.numpy() for each in model.layers[-1].weights], layer(ALL_IDS).numpy()
    targets[0] = np.inf
    with pytest.raises(tf.errors.OpError, match="NonFiniteGradientError"):
        model.fit(ALL_IDS, targets, verbose=0)
    after = [each.numpy() for each in model.layers[-1].weights], layer(ALL_IDS).numpy()
    assert all(map(np.array_equal, before[0], after[0]))
    assert np.array_equal(before[1], after[1])


def test_the_error_of_an_eager_step_is_ours() -> None:
    layer = Embedding(DIM, storage="memory")
    optimizer = Optimizer(layer, "sgd", learning_rate=1.0)
    broken = tf.IndexedSlices(tf.constant([[np.nan] * DIM]), tf.constant([1], tf.int64), [0, DIM])
    with pytest.raises(NonFiniteGradientError):
        optimizer.apply([broken], layer.trainable_variables)
    with pytest.raises(InvalidArgumentError, match="IndexedSlices"):
        optimizer.apply([tf.zeros([0, DIM])], layer.trainable_variables)
    skipping = Optimizer(layer, "sgd", learning_rate=1.0, non_finite_gradients="skip")
    skipping.apply([broken], layer.trainable_variables)
    assert skipping.container.counters.rows_skipped_non_finite == 1


def test_a_plain_optimizer_of_keras_is_rejected_and_changes_nothing() -> None:
    layers = [keras.Input((), dtype="int64"), Embedding(DIM, name="rows"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    before = model.get_weights()
    for native in (keras.optimizers.Adam(), keras.optimizers.SGD()):
        model.compile(optimizer=native, loss="mse")
        with pytest.raises(InvalidArgumentError, match=r"wrap it: sparring_tf\.Optimizer"):
            model.fit(ALL_IDS, np.ones((NUM_IDS, 1), np.float32), verbose=0)
    assert model.layers[0].num_rows() == {"rows": 0}
    for old, new in zip(before, model.get_weights(), strict=True):
        assert np.array_equal(old, new)


def test_a_rejected_gradient_drops_all_gradients_of_its_call() -> None:
    layers = [Embedding(DIM, storage="memory", name=name) for name in ("one", "other")]
    optimizer = Optimizer(layers, "sgd", learning_rate=1.0)
    variables = [each.trainable_variables[0] for each in layers]

    def slices(id_: int, dim: int) -> Any:
        return tf.IndexedSlices(tf.ones([1, dim]), tf.constant([id_], tf.int64), [0, DIM])

    with pytest.raises(InvalidArgumentError, match="gradients must have shape"):
        optimizer.apply([slices(1, DIM), slices(2, DIM + 1)], variables)
    with pytest.warns(UserWarning, match="found no gradients for one/one_anchor"):
        optimizer.apply([None, slices(3, DIM)], variables)
    assert [each.num_rows() for each in layers] == [{"one": 0}, {"other": 1}]


def test_errors_are_not_kept_outside_of_own_errors() -> None:
    layer = Embedding(DIM, storage="memory")
    optimizer = Optimizer(layer, "sgd", learning_rate=1.0)
    broken = tf.IndexedSlices(tf.constant([[np.nan] * DIM]), tf.constant([1], tf.int64), [0, DIM])

    @tf.function
    def step() -> None:
        optimizer.apply([broken], layer.trainable_variables)

    with pytest.raises(NonFiniteGradientError), own_errors():
        step()
    with pytest.raises(tf.errors.OpError, match="NonFiniteGradientError"):
        step()
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, NonFiniteGradientError)]


@pytest.mark.parametrize("rate", [float("nan"), -1.0])
def test_an_invalid_learning_rate_is_rejected_by_the_step(rate: float) -> None:
    layer = Embedding(DIM, storage="memory")
    optimizer = Optimizer(layer, "sgd", learning_rate=1.0)
    slices = tf.IndexedSlices(tf.ones([1, DIM]), tf.constant([1], tf.int64), [0, DIM])
    optimizer.apply([slices], layer.trainable_variables)
    before = layer(tf.constant([1], tf.int64)).numpy()
    optimizer.learning_rate = rate
    with pytest.raises(InvalidArgumentError, match="hyper-parameter 'lr'"):
        optimizer.apply([slices], layer.trainable_variables)
    assert np.array_equal(layer(tf.constant([1], tf.int64)), before)
    # The gradient of the rejected step was dropped.
    optimizer.learning_rate = 1.0
    other = tf.IndexedSlices(tf.ones([1, DIM]), tf.constant([2], tf.int64), [0, DIM])
    optimizer.apply([other], layer.trainable_variables)
    assert np.array_equal(layer(tf.constant([1], tf.int64)), before)


@pytest.mark.parametrize("is_graph", [False, True])
def test_missing_gradients_are_reported(is_graph: bool) -> None:
    """As in Keras: without any gradient a step raises, and variables without one are named."""
    layer, dense = (
        Embedding(DIM, storage="memory", name="item"),
        keras.layers.Dense(1, name="score"),
    )
    model = keras.Sequential([keras.Input((), dtype="int64"), layer, dense])
    optimizer = Optimizer(model, keras.optimizers.SGD(0.1))
    ids = tf.constant([1, 2], tf.int64)
    embeddings, constant = layer(ids), tf.ones([2])

    def step(loss_of: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loss_of())
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    taken = tf.function(step, autograph=False) if is_graph else step
    with pytest.raises(InvalidArgumentError, match="no variable has a gradient"):
        taken(lambda: constant)
    assert int(optimizer.iterations) == 0
    with pytest.warns(UserWarning, match="no gradients for item/item_anchor, which remain"):
        taken(lambda: dense(embeddings))
    assert layer.num_rows() == {"item": 0}
    with pytest.warns(
        UserWarning, match=r"no gradients for .*score/kernel, .*score/bias, which remain"
    ):
        taken(lambda: layer(ids))
    assert layer.num_rows() == {"item": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        taken(lambda: model(ids))
