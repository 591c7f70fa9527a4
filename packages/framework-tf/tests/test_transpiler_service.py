"""A Keras model for one machine with a service that learns: lookups pull, and steps push."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow")
pytest.importorskip("sparring_serve", reason="sparring-serve is not installed")

import keras
from keras import layers
from keras.optimizers import SGD, Adagrad, Adam, AdamW, RMSprop

from sparring.errors import SparringError, UnsupportedError
from sparring_serve import LookupServer, ServingConfig, open_parameter_server
from sparring_tf import distribute, restore

ROWS, DIM, STEPS = 30, 4, 20


def served(
    folder: Path, tables: dict[str, int], method: str, **hyper: Any
) -> tuple[LookupServer, Path]:
    """A service with one shard for tables of these dims, and its file."""
    parameters = {
        "tables": {
            name: {"dim": dim, "update_method": method, "hyper": hyper}
            for name, dim in tables.items()
        },
        "folders": [str(folder / "saved")],
        "start": None,
    }
    config = ServingConfig.model_validate({"parameters": parameters})
    server = open_parameter_server(config, address="127.0.0.1:0")
    file = folder / "serving.yaml"
    client = {"deadline_seconds": 60.0, "push_deadline_seconds": 60.0}
    text = {"shards": [[server.address]], "parameters": parameters, "client": client}
    file.write_text(json.dumps(text))
    return server, file


def functional() -> Any:
    user, items = keras.Input((), dtype="int32"), keras.Input((4,), dtype="int64")
    mean = layers.GlobalAveragePooling1D()(layers.Embedding(ROWS, DIM, name="items")(items))
    joined = layers.Concatenate()([layers.Embedding(ROWS, 2, name="user")(user), mean])
    return keras.Model([user, items], layers.Dense(1)(joined))


def masked() -> Any:
    words = keras.Input((4,), dtype="int64")
    found = layers.Embedding(ROWS, DIM, name="items", mask_zero=True)(words)
    return keras.Model(words, layers.Dense(1)(layers.LSTM(5)(found)))


def decaying() -> Any:
    return SGD(keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.9))


@pytest.mark.parametrize(
    ("make", "optimizer"),
    [(functional, lambda: SGD(0.5)), (masked, lambda: SGD(0.5)), (functional, decaying)],
    ids=["functional", "masked", "schedule"],
)
def test_the_program_gives_the_same_results(
    make: Callable[[], Any], optimizer: Callable[[], Any], tmp_path: Path
) -> None:
    generator = np.random.default_rng(3)
    user, items = generator.integers(0, ROWS, 6), generator.integers(0, ROWS, (6, 4))
    given = [user, items] if make is functional else items
    target = generator.random((6, 1), np.float32)
    original, model = make(), make()
    model.set_weights(original.get_weights())
    tables = {"items": DIM, "user": 2} if make is functional else {"items": DIM}
    server, file = served(tmp_path, tables, "sgd", lr=0.5)
    with server:
        model, ours = distribute(model, optimizer(), service=file)
        for each, its_optimizer in ((original, optimizer()), (model, ours)):
            each.compile(optimizer=its_optimizer, loss="mse")
            for _ in range(STEPS):
                each.train_on_batch(given, target)
        assert server.service.tables.steps >= STEPS
        restored = restore(model)
    for found, expected in zip(restored.get_weights(), original.get_weights(), strict=True):
        assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()


SERVED: dict[str, tuple[Callable[[], Any], str, dict[str, Any]]] = {
    "momentum": (lambda: SGD(0.1, momentum=0.9), "keras_momentum", {}),
    "Nesterov, with a schedule": (
        lambda: SGD(
            keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9), momentum=0.8, nesterov=True
        ),
        "keras_momentum",
        {"momentum": 0.8, "nesterov": True},
    ),
    "clipvalue": (lambda: SGD(0.5, clipvalue=0.01), "keras_sgd", {"clip_value": 0.01}),
    "Adagrad": (lambda: Adagrad(0.1), "keras_adagrad", {}),
    "Adagrad from 0.5": (
        lambda: Adagrad(0.1, initial_accumulator_value=0.5),
        "keras_adagrad",
        {"initial_accumulator_value": 0.5},
    ),
    "RMSprop": (lambda: RMSprop(0.01), "keras_rmsprop", {}),
    "Adam": (lambda: Adam(0.01), "keras_adam", {}),
    "Adam, with a schedule": (
        lambda: Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.9), beta_1=0.5),
        "keras_adam",
        {"beta1": 0.5},
    ),
    "AdamW": (lambda: AdamW(0.01, weight_decay=0.0), "keras_adam", {}),
    "accumulated": (lambda: Adam(0.01, gradient_accumulation_steps=2), "keras_adam", {}),
}


@pytest.mark.parametrize("name", list(SERVED))
def test_each_optimizer_gives_the_same_results_if_each_batch_has_all_ids(
    name: str, tmp_path: Path
) -> None:
    optimizer, method, hyper = SERVED[name]
    generator = np.random.default_rng(3)
    original, model = (
        keras.Sequential(
            [
                keras.Input((5,), dtype="int64"),
                layers.Embedding(ROWS, DIM, name="items"),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        for _ in range(2)
    )
    model.set_weights(original.get_weights())
    before = original.get_weights()
    server, file = served(tmp_path, {"items": DIM}, method, **hyper)
    with server:
        model, ours = distribute(model, optimizer(), service=file, semantics="lazy")
        for each, its_optimizer in ((original, optimizer()), (model, ours)):
            each.compile(optimizer=its_optimizer, loss="mse")
        for _ in range(STEPS):
            ids, target = generator.permutation(ROWS).reshape(6, 5), generator.random((6, 1))
            for each in (original, model):
                each.train_on_batch(ids, target)
        assert set(ours.routes.values()) == {method}
        restored = restore(model)
    for found, expected, first in zip(
        restored.get_weights(), original.get_weights(), before, strict=True
    ):
        assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()
        assert np.abs(found - first).max() > 1e-3 * np.abs(expected).max()


REFUSED: dict[str, tuple[Any, str]] = {
    "AdamW": (AdamW(0.1), "weight_decay depends on the learning rate"),
    "amsgrad": (Adam(0.1, amsgrad=True), "none can execute its steps: found amsgrad=True"),
    "Lion": (keras.optimizers.Lion(0.1), "no update method is known for Lion"),
    "clipnorm": (Adam(0.1, clipnorm=1.0), "clipnorm depends on all variables"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_other_optimizers_are_rejected(name: str) -> None:
    optimizer, words = REFUSED[name]
    with pytest.raises(UnsupportedError, match=words):
        distribute(functional(), optimizer, semantics="lazy", service="serving.yaml")


def test_an_optimizer_that_has_taken_steps_is_rejected() -> None:
    model, optimizer = functional(), Adam(0.1)
    optimizer.build(model.trainable_variables)
    with pytest.raises(UnsupportedError, match="pass one that has taken no step"):
        distribute(model, optimizer, semantics="lazy", service="serving.yaml")


def test_a_table_of_another_method_or_setting_is_rejected_by_name(tmp_path: Path) -> None:
    server, file = served(tmp_path, {"items": DIM}, "keras_adam", beta1=0.5)
    with server:
        with pytest.raises(SparringError, match=r"keras_adam.*keras_adagrad"):
            distribute(masked(), Adagrad(0.1), semantics="lazy", service=file)
        model, optimizer = distribute(masked(), Adam(0.1), semantics="lazy", service=file)
        model.compile(optimizer=optimizer, loss="mse", run_eagerly=True)
        with pytest.raises(SparringError, match=r"beta1=0\.9, but the table uses beta1=0\.5"):
            model.train_on_batch(np.ones((1, 4), int), np.ones((1, 1)))


class Tower(layers.Layer):
    """Contains an embedding in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [layers.Embedding(ROWS, DIM, name="items")]

    def call(self, ids: Any) -> Any:
        return self.parts[0](ids)


class Own(keras.Model):
    """A custom model with an embedding in a custom layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tower, self.score = Tower(), layers.Dense(1)

    def call(self, ids: Any) -> Any:
        return self.score(self.tower(ids))


def with_tower() -> Any:
    words = keras.Input((4,), dtype="int64")
    return keras.Model(words, layers.Dense(1)(Tower()(words)))


@pytest.mark.parametrize("make", [Own, with_tower])
def test_a_model_that_a_service_rejects_is_unchanged(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    model, ids = make(), np.arange(8).reshape(2, 4)
    expected = np.asarray(model(ids))
    server, file = served(tmp_path, {"items": DIM}, "keras_adam")
    with server:
        with pytest.raises(SparringError, match=r"keras_adam.*sgd"):
            distribute(model, SGD(0.1), service=file)
        assert np.array_equal(model(ids), expected)
        assert len(model.trainable_variables) == 3
        model, optimizer = distribute(model, Adam(0.1), semantics="lazy", service=file)
        assert len(optimizer.report.replaced) == 1
        assert np.array_equal(model(ids), expected)
