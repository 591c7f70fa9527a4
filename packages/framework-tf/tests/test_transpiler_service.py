"""A Keras model of one machine over a service that learns: lookups pull, and steps push."""

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
from keras.optimizers import SGD

from sparring.errors import UnsupportedError
from sparring_serve import LookupServer, ServingConfig, open_parameter_server
from sparring_tf import distribute, restore

ROWS, DIM, STEPS = 30, 4, 20


def served(folder: Path, tables: dict[str, int], rate: float) -> tuple[LookupServer, Path]:
    """A service of one shard for tables of these dims, and its file."""
    parameters = {
        "tables": {
            name: {"dim": dim, "update_method": "sgd", "hyper": {"lr": rate}}
            for name, dim in tables.items()
        },
        "folders": [str(folder / "saved")],
        "start": None,
    }
    config = ServingConfig.model_validate({"parameters": parameters})
    server = open_parameter_server(config, address="127.0.0.1:0")
    file = folder / "serving.yaml"
    client = {"deadline_seconds": 10.0, "push_deadline_seconds": 30.0}
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
def test_the_program_gives_what_it_gave(
    make: Callable[[], Any], optimizer: Callable[[], Any], tmp_path: Path
) -> None:
    generator = np.random.default_rng(3)
    user, items = generator.integers(0, ROWS, 6), generator.integers(0, ROWS, (6, 4))
    given = [user, items] if make is functional else items
    target = generator.random((6, 1), np.float32)
    original, model = make(), make()
    model.set_weights(original.get_weights())
    tables = {"items": DIM, "user": 2} if make is functional else {"items": DIM}
    server, file = served(tmp_path, tables, 0.5)
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


def test_other_optimizers_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="a service takes the steps of Keras's SGD"):
        distribute(functional(), keras.optimizers.Adam(), semantics="lazy", service="serving.yaml")
