"""Snapshots of a container contain the rows of Keras layers, independent of the framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring import StepContainer, Uniform
from sparring.errors import InvalidArgumentError
from sparring_testing.processes.table_steps import read_arrays
from sparring_tf.layers.embedding import Embedding
from sparring_tf.optim.optimizer import Optimizer
from sparring_tf.saving.saved_state import gather_state, restore_state

DIM, RATE = 8, 0.05
OPTIONS: dict[str, Any] = {"name": "rows", "seed": 5, "initializer": Uniform(-0.05, 0.05)}
IDS = np.arange(30, dtype=np.int64) * 10**15 - 7
TARGETS = (np.arange(30) % 3).astype(np.float32)[:, None]


def model_in(container: StepContainer, dim: int = DIM) -> Any:
    rows = Embedding(dim, container=container, **OPTIONS)
    model = keras.Sequential([keras.Input((), dtype="int64"), rows, keras.layers.Dense(1)])
    model.compile(optimizer=Optimizer(model, keras.optimizers.Adam(RATE)), loss="mse")
    return model


def trained(model: Any, epochs: int) -> Any:
    model.fit(IDS, TARGETS, batch_size=10, shuffle=False, epochs=epochs, verbose=0)
    return model.predict(IDS, verbose=0)


def test_a_model_resumes_from_a_snapshot_without_a_difference(tmp_path: Path) -> None:
    url = str(tmp_path / "snapshot")
    with StepContainer() as container:
        model = model_in(container)
        trained(model, 2)
        state = gather_state(model=model, optimizer=model.optimizer)
        container.save(url, states={"keras": state})
        expected = trained(model, 2)
    keras.utils.set_random_seed(99)
    with StepContainer() as container:
        model = model_in(container)
        model.optimizer.build(model.trainable_variables)
        loaded = container.load(url)
        restore_state(loaded.states["keras"], model=model, optimizer=model.optimizer)
        assert model.layers[0].num_rows() == {"rows": len(IDS)}
        assert np.array_equal(trained(model, 2), expected)


def test_fit_continues_from_a_snapshot_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed beside TensorFlow")
    sparring_torch = pytest.importorskip("sparring_torch", reason="sparring-torch is missing")
    url = str(tmp_path / "snapshot")
    generator = np.random.default_rng(6)
    ids = generator.choice(IDS, 400)
    targets = generator.normal(size=(400, DIM)).astype(np.float32)
    with StepContainer() as container:
        theirs = sparring_torch.Embedding(DIM, container=container, storage="hkv", **OPTIONS)
        stepping = sparring_torch.Optimizer(theirs, torch.optim.Adagrad, lr=RATE)

        def in_torch(part: slice) -> None:
            for begin in range(part.start, part.stop, 40):
                batch = slice(begin, begin + 40)
                error = theirs(torch.from_numpy(ids[batch])) - torch.from_numpy(targets[batch])
                stepping.zero_grad()
                error.square().sum().backward()
                stepping.step()

        in_torch(slice(0, 200))
        container.save(url)
        in_torch(slice(200, 400))
        expected = read_arrays(container, "rows")
    with StepContainer() as container:
        model = keras.Sequential(
            [
                keras.Input((), dtype="int64"),
                Embedding(DIM, container=container, storage="hkv", **OPTIONS),
            ]
        )
        native = keras.optimizers.Adagrad(RATE, initial_accumulator_value=0.0, epsilon=1e-20)
        summed = keras.losses.MeanSquaredError(reduction="sum")
        model.compile(Optimizer(model, native), loss=summed, loss_weights=float(DIM))
        container.load(url)
        model.fit(ids[200:], targets[200:], batch_size=40, shuffle=False, verbose=0)
        found = read_arrays(container, "rows")
    assert found.keys() == expected.keys()
    for key, row in found.items():
        # The embedding and Adagrad's sum of squares.
        assert row.shape == (2 * DIM,)
        np.testing.assert_allclose(row, expected[key], rtol=1e-5, atol=1e-5)


def test_a_snapshot_of_another_dim_is_rejected_and_changes_nothing(tmp_path: Path) -> None:
    with StepContainer() as container:
        trained(model_in(container), 1)
        container.save(str(tmp_path / "snapshot"))
    with StepContainer() as container:
        model = model_in(container, dim=4)
        before = trained(model, 1)
        with pytest.raises(InvalidArgumentError, match="dim"):
            container.load(str(tmp_path / "snapshot"))
        assert np.array_equal(model.predict(IDS, verbose=0), before)
