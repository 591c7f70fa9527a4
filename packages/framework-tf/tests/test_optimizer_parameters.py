"""Parameters of `Optimizer`, and of Keras's optimizers that it is given, have their effect or raise.

The parameters are read from the signatures: a new one without an entry here fails.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring.errors import InvalidArgumentError, NonFiniteGradientError, SparringError
from sparring_tf import Embedding, Optimizer

IDS = np.array([3, -1, 2**40], np.int64)
# They decrease, so that a maximum over steps differs from a mean.
SCALES = np.array([1, 0.5, 0.1, 0.05], np.float32)[:, None, None]
GRADIENTS = SCALES * np.random.default_rng(1).standard_normal((4, 3, 5)).astype(np.float32)
SGD = keras.optimizers.SGD


def made(sparse: Any = None, **options: Any) -> tuple[Any, Optimizer]:
    layer = Embedding(5, name="table", initializer="zeros", storage="memory")
    return layer, Optimizer(layer, SGD(1.0) if sparse is None else sparse, **options)


def step(layer: Any, optimizer: Optimizer, gradients: Any, others: Any = ()) -> None:
    """One step with `gradients` ``(3, 5)`` of `IDS`, and ones for the variables `others`."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant(IDS)) * gradients)
        loss += sum(tf.reduce_sum(each.value) for each in others)
    variables = [*layer.trainable_variables, *others]
    optimizer.apply(tape.gradient(loss, variables), variables)


def rows(layer: Any) -> Any:
    return np.asarray(layer(tf.constant(IDS)))


def parameters(callable_: Any) -> dict[str, Any]:
    """Name → default of the parameters of a class, without ``**options``."""
    found = list(inspect.signature(callable_.__init__).parameters.values())[1:]
    return {each.name: each.default for each in found if each.kind != each.VAR_KEYWORD}


# ---- parameters of Optimizer


def test_effect_of_layers() -> None:
    with pytest.raises(InvalidArgumentError, match="the given layers have no tables"):
        Optimizer(keras.layers.Dense(1), SGD())


def test_effect_of_sparse() -> None:
    for sparse, moved in ((SGD(0.5), 0.5), ("sgd", 0.01)):
        layer, optimizer = made(sparse)
        step(layer, optimizer, 1.0)
        np.testing.assert_allclose(rows(layer), -moved, rtol=1e-6)


def test_effect_of_dense() -> None:
    other = keras.Variable([1.0])
    layer, optimizer = made(dense=SGD(0.25))
    step(layer, optimizer, 1.0, [other])
    assert other.numpy() == 0.75
    assert (rows(layer) == -1).all()


def test_effect_of_learning_rate() -> None:
    layer, optimizer = made("sgd", learning_rate=0.5)
    step(layer, optimizer, 1.0)
    assert (rows(layer) == -0.5).all()
    with pytest.raises(
        InvalidArgumentError, match="learning_rate is only supported for update methods"
    ):
        made(learning_rate=0.5)


def test_effect_of_gradient_accumulation_steps() -> None:
    layer, optimizer = made(gradient_accumulation_steps=2)
    step(layer, optimizer, 1.0)
    assert not rows(layer).any()
    step(layer, optimizer, 3.0)
    assert (rows(layer) == -2).all()


def test_effect_of_non_finite_gradients() -> None:
    layer, optimizer = made(non_finite_gradients="skip")
    step(layer, optimizer, np.nan)
    assert not rows(layer).any()
    with pytest.raises(NonFiniteGradientError):
        step(*made(), np.nan)


def test_effect_of_tables() -> None:
    layer, optimizer = made("sgd", tables={"table": {"lr": 0.25}})
    step(layer, optimizer, 1.0)
    assert (rows(layer) == -0.25).all()


def test_effect_of_update() -> None:
    for update, route in (("auto", "keras_sgd"), ("method", "keras_sgd"), ("shadow", "shadow")):
        assert made(update=update)[1].routes["table"].startswith(route)


def test_effect_of_plan() -> None:
    with made(plan={"table": "table_wise"})[1].container as container:
        assert container.layout("table").kind == "table_wise"


def test_effect_of_name() -> None:
    assert made(name="mine")[1].name == "mine"


def test_every_parameter_of_the_optimizer_has_a_check() -> None:
    tests = {name for name in globals() if name.startswith("test_effect_of_")}
    assert {f"test_effect_of_{name}" for name in parameters(Optimizer)} == tests


# ---- parameters of the Keras optimizers that are given to it

OTHER_VALUES: dict[str, Any] = {
    "learning_rate": 0.3, "momentum": 0.5, "nesterov": True, "rho": 0.5, "centered": True,
    "initial_accumulator_value": 0.7, "epsilon": 0.05, "amsgrad": True,
    "beta": 0.4, "beta_1": 0.3, "beta_2": 0.7, "learning_rate_power": -0.4,
    "l1_regularization_strength": 0.2, "l2_regularization_strength": 0.2,
    "l2_shrinkage_regularization_strength": 0.2,
    "weight_decay": 0.2, "clipnorm": 0.1, "clipvalue": 0.1, "global_clipnorm": 0.1, "use_ema": True,
    "ema_momentum": 0.5, "ema_overwrite_frequency": 2, "loss_scale_factor": 2.0,
    "gradient_accumulation_steps": 2, "name": "mine",
}  # fmt: skip
NEUTRAL = {"name", "ema_momentum", "ema_overwrite_frequency"}
"""These change no variable in Keras either; averages are off unless `use_ema` is given."""
NEEDED = {"nesterov": {"momentum": 0.5}, "amsgrad": {"beta_2": 0.7}}
"""Without these the parameter has little or no effect."""
REJECTED = {
    "clipnorm", "global_clipnorm", "use_ema", "loss_scale_factor", "gradient_accumulation_steps",
}  # fmt: skip
KINDS = ("SGD", "Adagrad", "Adam", "AdamW", "RMSprop", "Adadelta", "Adamax", "Ftrl", "Lion")
NOT_BY_ROW = ("Adafactor", "Lamb", "Muon", "Nadam", "ScheduleFreeAdamW")
WRAPPERS = ("LossScaleOptimizer", "MultiOptimizer")


OF_ALL = set.intersection(*(set(parameters(getattr(keras.optimizers, kind))) for kind in KINDS))
"""Parameters of every optimizer."""


def options_of(kind: str) -> list[str]:
    """Parameters to test: all of one class with an update method and of one without, else its own."""
    found = parameters(getattr(keras.optimizers, kind))
    return [name for name in found if kind in ("Adam", "Ftrl") or name not in OF_ALL]


def native(kind: str, **options: Any) -> Any:
    return getattr(keras.optimizers, kind)(**{"learning_rate": 0.1, **options})


def dense_rows(optimizer: Any) -> Any:
    variable = keras.Variable(np.zeros((3, 5), np.float32))
    for gradients in GRADIENTS:
        optimizer.apply([tf.constant(gradients)], [variable])
    return variable.numpy()


def table_rows(optimizer: Any) -> Any:
    layer, wrapped = made(optimizer)
    for gradients in GRADIENTS:
        step(layer, wrapped, gradients)
    return rows(layer)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in KINDS for name in options_of(kind)]
)
def test_a_parameter_of_an_optimizer_of_keras_has_the_same_effect(kind: str, name: str) -> None:
    changed = {name: OTHER_VALUES[name]} | NEEDED.get(name, {})
    if name in REJECTED:
        with pytest.raises(SparringError, match=name):
            made(native(kind, **changed))
        return
    expected = dense_rows(native(kind, **changed))
    np.testing.assert_allclose(table_rows(native(kind, **changed)), expected, rtol=2e-5, atol=1e-6)
    if name not in NEUTRAL:
        other = dense_rows(native(kind, **{**changed, name: parameters(type(native(kind)))[name]}))
        assert np.abs(expected - other).max() > 1e-3 * np.abs(other).max()


def test_every_optimizer_of_keras_is_tested_or_rejected() -> None:
    classes = {
        name
        for name, value in vars(keras.optimizers).items()
        if inspect.isclass(value) and issubclass(value, keras.optimizers.Optimizer)
    }
    # Releases of Keras have different optimizers.
    known = {each for each in (*KINDS, *NOT_BY_ROW, *WRAPPERS) if hasattr(keras.optimizers, each)}
    assert classes - {"Optimizer"} == known
    for name in known - {*KINDS}:
        given = (SGD(),) if name == "LossScaleOptimizer" else ()
        given = (lambda _: SGD(),) if name == "MultiOptimizer" else given
        with pytest.raises(SparringError, match=f"optimizer {name} cannot update rows"):
            made(getattr(keras.optimizers, name)(*given))
