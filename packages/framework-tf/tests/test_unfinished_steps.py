"""`gradient_accumulation_steps`: rows and ordinary variables change in the same calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring.errors import NonFiniteGradientError
from sparring_tf.layers.embedding import Embedding
from sparring_tf.optim.optimizer import Optimizer

NUM_CALLS = 3
IDS, TARGETS = np.array([1, 2]), np.ones((2, 1), np.float32)


def made(rate: Any = 0.1, dense: Any = None) -> Any:
    layers = [Embedding(3, storage="memory", name="rows"), keras.layers.Dense(1, name="head")]
    model = keras.Sequential([keras.Input((), dtype="int64"), *layers])
    optimizer = Optimizer(
        model, keras.optimizers.SGD(rate), dense=dense, gradient_accumulation_steps=NUM_CALLS
    )
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


def calls(model: Any, number: int) -> list[tuple[bool, bool]]:
    """Returns whether rows, and ordinary variables, changed in each call."""

    def state() -> list[Any]:
        return [model.get_layer("rows")(IDS).numpy(), model.get_layer("head").kernel.numpy()]

    changed = []
    for _ in range(number):
        before = state()
        model.train_on_batch(IDS, TARGETS)
        rows, dense = (not np.array_equal(*each) for each in zip(before, state(), strict=True))
        changed.append((rows, dense))
    return changed


STEP = [(False, False)] * (NUM_CALLS - 1) + [(True, True)]


def test_a_file_that_was_saved_between_steps(tmp_path: Path) -> None:
    """It contains the gradients of ordinary variables, but not those of rows: both start again."""
    model = made()
    assert calls(model, 2) == STEP[:2]
    with pytest.warns(UserWarning, match="save of table 'rows': it is between calls"):
        model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="2 of gradient_accumulation_steps=3 calls .* were lost"):
        assert calls(again, 6) == STEP * 2
    # Loading replaces the rows for which the kept gradients were computed.
    model.load_weights(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="calls of a step were lost"):
        assert calls(model, 3) == STEP


def test_a_checkpoint_that_was_saved_between_steps(tmp_path: Path) -> None:
    model = made()
    calls(model, 1)
    saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    with pytest.warns(UserWarning, match="save of table 'rows': it is between calls"):
        path = saved.save(str(tmp_path / "checkpoint"))
    calls(model, 1)
    saved.restore(path)
    with pytest.warns(UserWarning, match="were lost by an error or by loading"):
        assert calls(model, 3) == STEP


def test_a_snapshot_that_is_loaded_between_steps(tmp_path: Path) -> None:
    model = made()
    calls(model, 3)
    model.optimizer.container.save(str(tmp_path / "step"))
    calls(model, 2)
    model.optimizer.container.load(str(tmp_path / "step"))
    with pytest.warns(UserWarning, match="were lost by an error or by loading"):
        assert calls(model, 3) == STEP


def test_an_error_in_the_last_call_of_a_step() -> None:
    model = made()
    calls(model, 2)
    with pytest.raises(NonFiniteGradientError):
        model.train_on_batch(IDS, TARGETS * np.nan)
    with pytest.warns(UserWarning, match="were lost by an error or by loading"):
        assert calls(model, 6) == STEP * 2


def test_calls_without_gradients_of_ordinary_variables_are_counted() -> None:
    model = made()
    layer, optimizer, variables = (
        model.get_layer("rows"),
        model.optimizer,
        model.trainable_variables,
    )

    def call(is_whole: bool) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(IDS) if is_whole else layer(IDS))
        optimizer.apply(tape.gradient(loss, variables), variables)

    before = model.get_layer("head").kernel.numpy()
    call(is_whole=True)
    for _ in range(2):
        with pytest.warns(UserWarning, match="no gradients for"):
            call(is_whole=False)
    assert not np.array_equal(model.get_layer("head").kernel, before)
    assert int(optimizer.iterations) == 1
    assert calls(model, 3) == STEP


@pytest.mark.parametrize("has_dense", [False, True])
def test_a_schedule_counts_calls_as_in_keras(has_dense: bool) -> None:
    def rate() -> Any:
        return keras.optimizers.schedules.PiecewiseConstantDecay([4], [0.1, 0.0])

    model = made(rate(), keras.optimizers.SGD(rate()) if has_dense else None)
    # The rate is 0.1 up to the fifth call.
    assert calls(model, 6) == [*STEP, *[(False, False)] * 3]
