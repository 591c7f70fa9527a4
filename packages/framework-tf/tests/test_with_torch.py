"""PyTorch and TensorFlow in one process: equal rows, and rows that both frameworks train."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)
torch = pytest.importorskip("torch", reason="PyTorch is not installed beside TensorFlow")

import keras

import sparring_tf
import sparring_torch
from sparring import StepContainer, Uniform, make_plugin_manager
from sparring_testing.processes.table_steps import read_arrays
from sparring_train.config.run_type import run_type
from sparring_train.registered_kinds import find_trainer
from sparring_train.run.result import SilentProgress

DIM, RATE = 8, 0.05
OPTIONS: dict[str, Any] = {"name": "rows", "seed": 5, "initializer": Uniform(-0.05, 0.05)}


def batches(count: int) -> list[tuple[Any, Any]]:
    generator = np.random.default_rng(6)
    known = generator.integers(-(2**62), 2**62, 100)
    return [
        (generator.choice(known, 64), generator.normal(size=(64, DIM)).astype(np.float32))
        for _ in range(count)
    ]


class InTorch:
    def __init__(self, container: StepContainer) -> None:
        self.layer = sparring_torch.Embedding(DIM, container=container, storage="hkv", **OPTIONS)
        self._optimizer = sparring_torch.Optimizer(self.layer, torch.optim.Adagrad, lr=RATE)

    def step(self, ids: Any, targets: Any) -> None:
        error = self.layer(torch.from_numpy(ids)) - torch.from_numpy(targets)
        self._optimizer.zero_grad()
        error.square().sum().backward()
        self._optimizer.step()


class InTensorFlow:
    def __init__(self, container: StepContainer) -> None:
        self.layer = sparring_tf.Embedding(DIM, container=container, storage="hkv", **OPTIONS)
        native = keras.optimizers.Adagrad(RATE, initial_accumulator_value=0.0, epsilon=1e-20)
        self._optimizer = sparring_tf.Optimizer(self.layer, native)

    def step(self, ids: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((self.layer(tf.constant(ids)) - targets) ** 2)
        variables = self.layer.trainable_variables
        self._optimizer.apply(tape.gradient(loss, variables), variables)


def test_rows_and_state_after_100_steps_equal_torch() -> None:
    with StepContainer() as ours, StepContainer() as theirs:
        one, other = InTensorFlow(ours), InTorch(theirs)
        ids = batches(1)[0][0]
        with torch.no_grad():
            initial = other.layer(torch.from_numpy(ids)).numpy()
        assert np.array_equal(one.layer(tf.constant(ids)), initial)
        for batch in batches(100):
            one.step(*batch)
            other.step(*batch)
        mine, torchs = read_arrays(ours, "rows"), read_arrays(theirs, "rows")
    assert mine.keys() == torchs.keys()
    for key, row in mine.items():
        np.testing.assert_allclose(row, torchs[key], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", [(InTorch, InTensorFlow), (InTensorFlow, InTorch)])
def test_training_continues_from_a_snapshot_of_another_framework(order: Any, tmp_path: Any) -> None:
    first, second = order
    steps = batches(40)
    with StepContainer() as before, StepContainer() as after, StepContainer() as alone:
        begun, whole = first(before), first(alone)
        for batch in steps[:20]:
            begun.step(*batch)
        before.save(str(tmp_path / "snapshot"))
        continued = second(after)
        after.load(str(tmp_path / "snapshot"))
        begun_rows, taken = read_arrays(before, "rows"), read_arrays(after, "rows")
        assert begun_rows.keys() == taken.keys()
        assert all(np.array_equal(row, taken[key]) for key, row in begun_rows.items())
        for batch in steps[20:]:
            continued.step(*batch)
        for batch in steps:
            whole.step(*batch)
        continued_rows, whole_rows = read_arrays(after, "rows"), read_arrays(alone, "rows")
    assert continued_rows.keys() == whole_rows.keys()
    for key, row in continued_rows.items():
        np.testing.assert_allclose(row, whole_rows[key], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "optimizer",
    [{"name": "adagrad", "lr": 0.05}, {"name": "rmsprop", "lr": 0.005}],
    ids=["update method", "native optimizer"],
)
def test_ratings_are_learned_equally_well(tmp_path: Any, optimizer: dict[str, Any]) -> None:
    generator = np.random.default_rng(5)
    users, items = generator.integers(0, 30, 2000), generator.integers(0, 40, 2000)
    scores = 3 + generator.normal(size=30)[users] * 0.7 + generator.normal(size=40)[items] * 0.7
    path = tmp_path / "ratings.csv"
    lines = sorted(
        {
            (
                int(user),
                int(item),
            ): f"{user * 10**12},{item},{np.clip(round(score * 2) / 2, 0.5, 5)},0"
            for user, item, score in zip(users, items, scores, strict=True)
        }.values()
    )
    path.write_text("user,item,rating,timestamp\n" + "\n".join(lines) + "\n")
    given = {
        "seed": 1,
        "threads": 1,
        "data": {
            "kind": "table",
            "path": str(path),
            "label": "rating",
            "categorical": ["user", "item"],
            "required": ["user", "item"],
            "split": {"exact_fraction": 0.1},
            "batch_size": 64,
        },
        "model": {"kind": "matrix_factorization", "dim": 4},
        "optimizer": {"sparse": optimizer},
        "training": {"epochs": 3, "micro_batches": 2},
    }
    manager = make_plugin_manager()
    ours, theirs = (
        find_trainer(framework, manager).train(
            run_type().model_validate({"framework": framework, **given}), manager, SilentProgress()
        )
        for framework in ("tensorflow", "torch")
    )
    assert ours.rows == theirs.rows
    assert ours.steps == theirs.steps
    assert abs(ours.metrics["rmse"] - theirs.metrics["rmse"]) < 0.003
