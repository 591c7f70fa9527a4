"""A run with TensorFlow that is interrupted and resumed ends like an uninterrupted one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

import sparring_tf
from sparring import StepContainer, make_plugin_manager, scan_rows
from sparring.errors import InvalidArgumentError
from sparring.snapshot.retention import latest_snapshot
from sparring_train.config.run_type import run_type
from sparring_train.registered_kinds import find_trainer
from sparring_train.run.result import SilentProgress, TrainResult

CLICKS: dict[str, Any] = {
    "seed": 1,
    "threads": 1,
    "data": {
        "kind": "synthetic_criteo",
        "samples": 1200,
        "test_samples": 300,
        "batch_size": 40,
        "max_ids": 300,
    },
    "model": {"kind": "dlrm", "embedding_dim": 4, "bottom_mlp": [8], "top_mlp": [8]},
    "training": {"epochs": 1, "evaluation_interval_steps": 25, "micro_batches": 2},
}

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "native adam": {"sparse": {"name": "keras.optimizers:Adam", "lr": 0.01}},
    "fused adagrad": {
        "sparse": {"name": "adagrad", "lr": 0.05},
        "dense": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
    },
}


class Interrupted(Exception):  # noqa: N818 - no error: the end of a run
    """A run was interrupted."""


class Interrupting(SilentProgress):
    """Ends a run after a step."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.messages: list[str] = []

    def on_step(self, step: int, loss: float, num_samples: int) -> None:
        if step == self.at:
            raise Interrupted

    def on_message(self, text: str) -> None:
        self.messages.append(text)


def train(
    folder: Path, optimizer: str, progress: Any = None, framework: str = "tensorflow", **more: Any
) -> TrainResult:
    settings = {
        **CLICKS,
        "framework": framework,
        "optimizer": OPTIMIZERS[optimizer],
        "snapshots": {"url": str(folder), "every_steps": 7, **more},
    }
    manager = make_plugin_manager()
    config = run_type().model_validate(settings)
    return find_trainer(framework, manager).train(config, manager, progress or SilentProgress())


def contents(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rows of all tables, and arrays of the framework, of the last snapshot."""
    snapshot = latest_snapshot(str(folder))
    assert snapshot is not None
    rows = {
        (table, int(key)): row.tobytes()
        for table in snapshot.tables
        for chunk in scan_rows(snapshot, table)
        for key, row in zip(chunk.keys, chunk.rows, strict=True)
    }
    arrays = snapshot.state("tensorflow").arrays
    return rows, {name: np.array(value) for name, value in arrays.items()}


@pytest.mark.parametrize(("optimizer", "at"), [("native adam", 25), ("fused adagrad", 17)])
def test_an_interrupted_run_ends_with_the_same_bits(
    tmp_path: Path, optimizer: str, at: int
) -> None:
    whole = train(tmp_path / "whole", optimizer)
    with pytest.raises(Interrupted):
        train(tmp_path / "cut", optimizer, Interrupting(at))
    progress = Interrupting(-1)
    resumed = train(tmp_path / "cut", optimizer, progress, resume=True)
    assert f"after step {at // 7 * 7}" in progress.messages[0]
    assert (resumed.steps, resumed.rows) == (whole.steps, whole.rows)
    assert resumed.metrics == whole.metrics
    rows, arrays = contents(tmp_path / "cut")
    expected_rows, expected_arrays = contents(tmp_path / "whole")
    assert rows == expected_rows
    assert arrays.keys() == expected_arrays.keys()
    for name, value in arrays.items():
        assert np.array_equal(value, expected_arrays[name]), name


def test_sigterm_saves_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping = Interrupting(-1)
    monkeypatch.setattr(
        stopping, "on_step", lambda step, *_: step == 3 and os.kill(os.getpid(), signal.SIGTERM)
    )
    result = train(tmp_path, "fused adagrad", stopping)
    saved = latest_snapshot(str(tmp_path))
    assert saved is not None
    assert (result.is_terminated, result.steps, saved.step) == (True, 4, 4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_learning_rates_equal_the_configuration(
    optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparring_train.keras import trainer as tf_training

    with pytest.raises(Interrupted):
        train(tmp_path, optimizer, Interrupting(17))
    sparse, dense = OPTIMIZERS[optimizer]["sparse"], OPTIMIZERS[optimizer].get("dense", {})
    changed = {"sparse": {**sparse, "lr": 0.5}, "dense": {**dense, "lr": 0.25}}
    monkeypatch.setitem(OPTIMIZERS, optimizer, changed)
    seen: list[float] = []
    restore = tf_training._Trainer.restore

    def restore_and_look(trainer: Any, states: Any) -> None:
        restore(trainer, states)
        seen.extend(float(each.learning_rate) for each in (trainer._rows, trainer._dense))
        assert int(trainer._dense.iterations) == 14

    monkeypatch.setattr(tf_training._Trainer, "restore", restore_and_look)
    progress = Interrupting(-1)
    train(tmp_path, optimizer, progress, resume=True)
    assert seen == [0.5, 0.25]
    assert len([each for each in progress.messages if " is now " in each]) == 2


def test_a_run_of_another_framework_continues_with_its_rows(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed beside TensorFlow")
    with pytest.raises(Interrupted):
        train(tmp_path, "fused adagrad", Interrupting(24), framework="torch")
    progress = Interrupting(-1)
    resumed = train(tmp_path, "fused adagrad", progress, resume=True)
    assert resumed.steps == 30
    assert any("was not written with tensorflow: rows and" in each for each in progress.messages)


def test_state_is_restored_and_another_model_is_rejected(tmp_path: Path) -> None:
    def made(units: int) -> tuple[Any, Any]:
        inputs = keras.Input((2,), dtype="int64")
        rows = sparring_tf.Embedding(4, container=container, name="rows")(inputs)
        outputs = keras.layers.Dense(units)(keras.layers.Flatten()(rows))
        model = keras.Model(inputs, outputs)
        optimizer = sparring_tf.Optimizer(model, keras.optimizers.Adam(0.1))
        optimizer.build(model.trainable_variables)
        return model, optimizer

    with StepContainer() as container:
        model, optimizer = made(3)
        ids = tf.constant([[1, 2], [3, 4]], tf.int64)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(ids) ** 2)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        state = sparring_tf.gather_state(model=model, optimizer=optimizer)
        kept = [each.numpy() for each in model.layers[-1].trainable_variables]
        moments = [each.numpy() for each in optimizer.dense.variables]
        for each in (*model.layers[-1].trainable_variables, *optimizer.variables):
            each.assign(tf.zeros_like(each))
        sparring_tf.restore_state(state, model=model, optimizer=optimizer)
        for each, value in zip(optimizer.dense.variables, moments, strict=True):
            assert np.array_equal(each.numpy(), value)
        assert any(each.any() for each in moments if each.ndim)
        for each, value in zip(model.layers[-1].trainable_variables, kept, strict=True):
            assert np.array_equal(each.numpy(), value)
            assert value.any()
        assert int(optimizer.iterations) == 1
    with StepContainer() as container:
        other, _ = made(5)
        with pytest.raises(InvalidArgumentError, match=r"shape \(8, 3\)"):
            sparring_tf.restore_state(state, model=other)
        with pytest.raises(InvalidArgumentError, match="nothing for 'dense'"):
            sparring_tf.restore_state(state, dense=other)
