"""Keras optimizers that run as update methods compute the same rows as their own code."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring.errors import InvalidArgumentError, NonFiniteGradientError, UnsupportedError
from sparring_tf.layers.embedding import Embedding
from sparring_tf.optim import known_optimizers
from sparring_tf.optim.optimizer import Optimizer

Make = Callable[[], Any]
NUM_IDS = 100
IDS = np.arange(NUM_IDS, dtype=np.int64) * 7 - 300
SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.8)

FUSED: list[tuple[str, Make]] = [
    ("keras_sgd", lambda: keras.optimizers.SGD(0.1)),
    ("keras_sgd", lambda: keras.optimizers.SGD(0.1, weight_decay=0.1, clipvalue=0.5)),
    ("keras_momentum", lambda: keras.optimizers.SGD(0.1, momentum=0.9)),
    ("keras_momentum", lambda: keras.optimizers.SGD(SCHEDULE, momentum=0.8, nesterov=True)),
    ("keras_adagrad", lambda: keras.optimizers.Adagrad(0.1)),
    ("keras_adagrad", lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.5)),
    ("keras_rmsprop", lambda: keras.optimizers.RMSprop(0.01, rho=0.7, weight_decay=0.1)),
    ("keras_adam", lambda: keras.optimizers.Adam(0.01)),
    ("keras_adam", lambda: keras.optimizers.Adam(SCHEDULE, beta_1=0.4, beta_2=0.9, epsilon=1e-3)),
    ("keras_adam", lambda: keras.optimizers.AdamW(0.01, weight_decay=0.3)),
]
FUSED_NAMES = [f"{method}-{number}" for number, (method, _) in enumerate(FUSED)]

SHADOWED: list[tuple[str, Make]] = [
    ("amsgrad=True", lambda: keras.optimizers.Adam(amsgrad=True)),
    ("centered=True", lambda: keras.optimizers.RMSprop(centered=True)),
    ("momentum=0.5", lambda: keras.optimizers.RMSprop(momentum=0.5)),
    ("no update method is known for Lion", keras.optimizers.Lion),
    ("for MyAdam", type("MyAdam", (keras.optimizers.Adam,), {})),
]


def made(make: Make, dim: int = 7, dtype: str = "float32", **options: Any) -> tuple[Any, Any]:
    layer = Embedding(dim, storage="memory", table_dtype=dtype, name="table")
    return layer, Optimizer(layer, make(), **options)


def table_of(optimizer: Any) -> str:
    return next(iter(optimizer.container.tables))


def rows_of(optimizer: Any) -> npt.NDArray[Any]:
    found = optimizer.container.storage(table_of(optimizer)).find(IDS)
    assert found.found.all()
    return found.rows


def train(layer: Any, optimizer: Any, step: int, num_ids: int = NUM_IDS) -> None:
    """Gradients of many magnitudes; step 0 has one for all rows."""
    random = np.random.default_rng(step)
    chosen = random.permutation(NUM_IDS)[: NUM_IDS if step == 0 else num_ids]
    scale = random.standard_normal((len(chosen), 1)) * 10.0 ** random.uniform(-3, 1)
    with tf.GradientTape() as tape:
        found = layer(tf.constant(IDS[chosen]))
        factor = random.standard_normal(tuple(found.shape)) * scale
        loss = tf.reduce_sum(found * tf.cast(factor, found.dtype))
    variables = layer.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)


@pytest.mark.parametrize(("method", "make"), FUSED, ids=FUSED_NAMES)
def test_a_step_from_equal_rows_differs_by_rounding_at_most(method: str, make: Make) -> None:
    pairs = [made(make, update=route) for route in ("auto", "shadow")]
    (_, ours), (_, theirs) = pairs
    before, dim = None, 7
    for step in range(8):
        for layer, optimizer in pairs:
            train(layer, optimizer, step, 70)
        assert list(ours.routes.values()) == [method]
        assert next(iter(theirs.routes.values())).startswith("shadow")
        found, expected = rows_of(ours), rows_of(theirs)
        assert np.array_equal(found[:, dim:], expected[:, dim:])
        if before is not None:
            difference = np.abs(found - expected)
            own = np.spacing(np.maximum(np.abs(before), np.abs(expected)))
            moved = np.abs(expected - before)
            assert (difference <= own + 4 * np.spacing(moved)).all()
            # In a graph, TensorFlow replaces a division by a root by a product with its inverse.
            assert (difference > own).mean() < 0.06
        theirs.container.storage(table_of(theirs)).upsert(IDS, found)
        before = found.copy()


@pytest.mark.parametrize(
    ("method", "make"), [FUSED[0], FUSED[2], FUSED[4], FUSED[6], FUSED[7], FUSED[9]]
)
def test_after_100_steps_rows_are_as_close_to_float64_as_the_shadows(
    method: str, make: Make
) -> None:
    runs = {
        "exact": made(make, dtype="float64", update="shadow"),
        "shadow": made(make, update="shadow"),
        "fused": made(make),
    }
    for layer, optimizer in runs.values():
        for step in range(100):
            train(layer, optimizer, step, 60)
    assert list(runs["fused"][1].routes.values()) == [method]
    rows = {name: rows_of(optimizer).astype(np.float64) for name, (_, optimizer) in runs.items()}

    def error(name: str) -> float:
        return float(np.sqrt(np.mean((rows[name] - rows["exact"])[:, :7] ** 2)))

    assert 0 < error("fused") <= 1.05 * error("shadow")


@pytest.mark.parametrize(("reason", "make"), SHADOWED)
def test_steps_without_an_update_method_use_the_shadow(reason: str, make: Make) -> None:
    layer, optimizer = made(make)
    train(layer, optimizer, 0)
    (route,) = optimizer.routes.values()
    assert route.startswith("shadow: ")
    assert reason in route


def test_the_shadow_can_be_requested(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sparring_tf"):
        _, fused = made(keras.optimizers.Adam)
        _, shadowed = made(keras.optimizers.Adam, update="shadow")
    assert list(fused.routes.values()) == ["keras_adam"]
    assert list(shadowed.routes.values()) == ["shadow: update='shadow' was given"]
    assert [each.getMessage().rpartition(" route ")[2] for each in caplog.records] == [
        "keras_adam",
        "shadow: update='shadow' was given",
    ]
    assert "update" not in fused.get_config()
    again = Optimizer.from_config(shadowed.get_config())
    assert again.get_config()["update"] == "shadow"
    with pytest.raises(InvalidArgumentError, match="must be 'auto', 'shadow' or 'method'"):
        made(keras.optimizers.Adam, update="native")
    with pytest.raises(InvalidArgumentError, match="found update method 'adam'"):
        Optimizer(Embedding(3), "adam", update="shadow")


def test_a_step_that_rounds_differently_uses_the_shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    original = keras.optimizers.SGD.update_step

    def step(self: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
        original(self, tf.sign(gradient), variable, learning_rate)

    monkeypatch.setattr(keras.optimizers.SGD, "update_step", step)
    _, optimizer = made(keras.optimizers.SGD)
    assert list(optimizer.routes.values()) == ["shadow: this release of Keras rounds differently"]


def test_unknown_settings_use_the_shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    original = keras.optimizers.SGD.get_config
    native = keras.optimizers.SGD()
    monkeypatch.setattr(
        keras.optimizers.SGD, "get_config", lambda self: {**original(self), "cautious": True}
    )
    known = known_optimizers.known_optimizer(native, [])
    assert known == "settings cautious are unknown"


@pytest.mark.parametrize(
    ("_", "make", "first", "then"),
    [
        (*FUSED[2], "auto", "shadow"),
        (*FUSED[4], "shadow", "auto"),
        (*FUSED[7], "auto", "shadow"),
        (*FUSED[7], "shadow", "auto"),
    ],
)
def test_training_continues_from_a_snapshot_by_the_other_route(
    _: str, make: Make, first: str, then: str, tmp_path: Path
) -> None:
    layer, optimizer = made(make, update=first)
    for step in range(3):
        train(layer, optimizer, step)
    place = str(tmp_path / "snapshot")
    optimizer.container.save(place)
    resumed_layer, resumed = made(make, update=then)
    resumed.build(resumed_layer.trainable_variables)
    resumed.container.load(place)
    resumed.iterations.assign(optimizer.iterations)
    assert np.array_equal(rows_of(resumed), rows_of(optimizer))
    for step in range(3, 6):
        train(layer, optimizer, step)
        train(resumed_layer, resumed, step)
    assert resumed.routes != optimizer.routes
    np.testing.assert_allclose(rows_of(resumed), rows_of(optimizer), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("update", ["auto", "shadow"])
def test_non_finite_gradients_follow_the_policy_on_both_routes(update: str) -> None:
    layer, optimizer = made(keras.optimizers.Adam, update=update)
    train(layer, optimizer, 0)
    before = rows_of(optimizer).copy()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant(IDS)) * np.nan)
    variables = layer.trainable_variables
    with pytest.raises(NonFiniteGradientError):
        optimizer.apply(tape.gradient(loss, variables), variables)
    assert np.array_equal(rows_of(optimizer), before)


class Factor(keras.optimizers.SGD):
    """Has an argument that `get_config` does not return."""

    def __init__(self, learning_rate: float = 0.1, factor: float = 1.0, **options: Any) -> None:
        super().__init__(learning_rate, **options)
        self._factor = factor

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate * self._factor)


@pytest.mark.parametrize(
    "method",
    ["apply", "_clip_gradients", "_apply_weight_decay", "_get_current_learning_rate", "iterations"],
)
def test_subclasses_that_override_methods_that_rows_do_not_call_are_rejected(method: str) -> None:
    kind = type("Mine", (keras.optimizers.SGD,), {method: getattr(keras.optimizers.SGD, method)})
    heir = type("Heir", (kind,), {})
    with pytest.raises(UnsupportedError, match=f"optimizer Heir .* overrides {method}, .*dense="):
        made(lambda: heir(0.1))
    layer = Embedding(3, storage="memory", name="table")
    Optimizer(layer, keras.optimizers.SGD(0.1), dense=heir(0.1))


def test_arguments_that_get_config_does_not_return_are_rejected() -> None:
    with pytest.raises(UnsupportedError, match=r"attribute _factor is 1\.0, expected 0\.5; return"):
        made(lambda: Factor(factor=0.5))
    changed = keras.optimizers.SGD(0.1)
    changed.mine = 1
    with pytest.raises(UnsupportedError, match="attribute mine is None, expected 1"):
        made(lambda: changed)
    made(Factor)
    kind = type("Kept", (Factor,), {"get_config": lambda self: {
        **super(Factor, self).get_config(), "factor": self._factor
    }})  # fmt: skip
    layer, optimizer = made(lambda: kind(factor=0.0))
    before = layer(IDS)
    train(layer, optimizer, 0)
    assert np.array_equal(layer(IDS), before)
