"""Rates and settings of an `Optimizer` have their effect on rows and ordinary variables, or raise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras
from keras.optimizers import SGD, Adam

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_tf.layers.embedding import Embedding
from sparring_tf.optim.optimizer import Optimizer

IDS, TARGETS = np.array([1, 2]), np.ones((2, 1), np.float32)


def made(sparse: Any = None, **options: Any) -> Any:
    layers = [Embedding(3, storage="memory", name="rows"), keras.layers.Dense(1, name="head")]
    model = keras.Sequential([keras.Input((), dtype="int64"), *layers])
    model.compile(Optimizer(model, SGD(0.1) if sparse is None else sparse, **options), "mse")
    return model


def fit(model: Any, *callbacks: Any, epochs: int = 1) -> None:
    model.fit(IDS, TARGETS, epochs=epochs, callbacks=list(callbacks), verbose=0)


def rates(optimizer: Any) -> tuple[float, float]:
    both = (optimizer.learning_rate, optimizer.dense.learning_rate)
    return tuple(round(float(each), 7) for each in both)  # type: ignore[return-value]


def test_the_rate_of_dense_follows_callbacks_by_the_same_factor() -> None:
    model = made(dense=SGD(0.02))
    fit(model, keras.callbacks.LearningRateScheduler(lambda _, rate: rate / 2), epochs=2)
    assert rates(model.optimizer) == (0.025, 0.005)
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.1, patience=1, min_delta=1e9)
    fit(model, plateau, epochs=3)
    assert rates(model.optimizer) == (0.00025, 0.00005)
    model.optimizer.learning_rate = 0.0
    before = [each.numpy() for each in model.get_layer("head").weights]
    fit(model)
    assert all(map(np.array_equal, before, model.get_layer("head").get_weights()))
    model.optimizer.learning_rate = 0.5
    assert rates(model.optimizer) == (0.5, 0.1)


def test_a_rate_that_dense_cannot_follow_is_rejected() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    for optimizer, rate in (
        (made(dense=SGD(0.1)).optimizer, schedule),
        (made(dense=SGD(schedule)).optimizer, 0.5),
    ):
        with pytest.raises(InvalidArgumentError, match="of SGD, passed as dense, cannot follow"):
            optimizer.learning_rate = rate
        assert float(optimizer.learning_rate) == np.float32(0.1)


def test_get_config_contains_the_current_rate() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.3, 10, 0.5)
    for options in ({}, {"dense": SGD(0.1)}):
        optimizer = made(**options).optimizer
        optimizer.learning_rate = 0.001
        again = Optimizer.from_config(optimizer.get_config())
        assert rates(again) == (0.001, 0.001)
    optimizer = made().optimizer
    optimizer.learning_rate = schedule
    again = Optimizer.from_config(optimizer.get_config())
    assert float(again.learning_rate) == np.float32(0.3)


@pytest.mark.parametrize("sparse", ["adam", "keras_adam", "adagrad", "lion", "sgd", "rmsprop"])
def test_the_default_rate_is_that_of_keras(sparse: str) -> None:
    optimizer = Optimizer(Embedding(3, storage="memory"), sparse)
    keras_rate = keras.optimizers.get(sparse.removeprefix("keras_")).learning_rate
    assert float(optimizer.learning_rate) == float(keras_rate)


def test_lr_is_a_name_of_the_learning_rate_of_methods() -> None:
    layer = Embedding(3, storage="memory")
    assert float(Optimizer(layer, "sgd", lr=0.5).learning_rate) == 0.5
    with pytest.raises(InvalidArgumentError, match="two names of the learning rate"):
        Optimizer(layer, "sgd", lr=0.5, learning_rate=0.1)


@pytest.mark.parametrize("as_sparse", [True, False])
def test_a_function_is_a_rate(as_sparse: bool) -> None:
    values = [0.5]
    layer = Embedding(3, storage="memory", initializer={"kind": "constant", "value": 0.0})
    sparse = SGD(lambda: values[-1]) if as_sparse else "sgd"
    options = {} if as_sparse else {"learning_rate": lambda: values[-1]}
    optimizer = Optimizer(layer, sparse, **options)
    for each in (0.5, 0.25):
        values.append(each)
        slices = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([1], tf.int64), [0, 3])
        optimizer.apply([slices], layer.trainable_variables)
    assert (layer(np.array([1])).numpy() == -0.75).all()


@pytest.mark.parametrize(
    ("sparse", "name", "value"),
    [
        (SGD(0.1), "clipnorm", 1e-9),
        (SGD(0.1), "clipvalue", 1e-9),
        (SGD(0.1), "global_clipnorm", 1e-9),
        (SGD(0.1), "weight_decay", 5.0),
        (SGD(0.1), "momentum", 0.5),
        (SGD(0.1), "use_ema", True),
        (SGD(0.1), "gradient_accumulation_steps", 2),
        (Adam(0.1), "beta_1", 0.5),
        ("adam", "beta1", 0.5),
        ("adam", "clipnorm", 0.5),
    ],
)
def test_settings_that_are_assigned_later_are_rejected(sparse: Any, name: str, value: Any) -> None:
    model = made(sparse, dense=SGD(0.1))
    with pytest.raises(InvalidArgumentError, match=f"found {name}={value}, assigned after"):
        setattr(model.optimizer, name, value)
    assert getattr(model.optimizer, name, None) != value
    model.optimizer.clipvalue = None
    fit(model)
    with pytest.raises(UnsupportedError, match=r"loss_scale_factor.*LossScaleOptimizer"):
        model.optimizer.loss_scale_factor = 2.0


@pytest.mark.parametrize(
    ("dense", "message"),
    [
        (lambda: SGD(loss_scale_factor=8.0), "dense has loss_scale_factor=8.0, but the loss"),
        (lambda: keras.optimizers.LossScaleOptimizer(SGD()), "dense has LossScaleOptimizer, but"),
        (lambda: SGD(gradient_accumulation_steps=4), "=4, but rows take a step every 2 calls"),
    ],
)
def test_options_of_dense_that_concern_the_loss_or_rows_are_rejected(
    dense: Any, message: str
) -> None:
    given = dense()
    with pytest.raises((UnsupportedError, InvalidArgumentError), match=message):
        made(dense=given, gradient_accumulation_steps=2)
    assert given.gradient_accumulation_steps in (None, 4)


def test_averages_of_dense_are_assigned_at_the_end_of_fit() -> None:
    dense = SGD(0.1, use_ema=True, ema_momentum=0.9)
    model = made(dense=dense)
    fit(model, epochs=3)
    average = dense._model_variables_moving_average
    for mine, its in zip(model.get_layer("head").weights, average, strict=True):
        assert np.array_equal(mine, its)


@pytest.mark.parametrize("update", ["auto", "shadow"])
def test_a_clipvalue_of_zero_does_not_clip_as_in_keras(update: str) -> None:
    model = made(SGD(0.1, clipvalue=0.0), update=update)
    before = model.layers[0](IDS).numpy()
    fit(model)
    assert not np.array_equal(model.layers[0](IDS), before)
