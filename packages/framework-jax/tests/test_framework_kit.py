"""Runs the conformance kit of framework adapters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
optax = pytest.importorskip("optax", reason="optax is not installed: pip install optax")

from sparring import StepContainer
from sparring.contracts import TableConfig
from sparring_jax.batch import embeddings, pad_weights, pool
from sparring_jax.optimizer import Optimizer
from sparring_jax.tables import Tables
from sparring_testing.frameworks.framework_tests import FrameworkTests, MakeModel

NATIVE: dict[str, Callable[[float], Any]] = {
    "sgd": optax.sgd,
    "adagrad": lambda rate: optax.adagrad(rate, initial_accumulator_value=0.0, eps=1e-20),
    "adam": optax.adam,
}


@jax.jit
def gradients_of(rows: Any, positions: Any, targets: Any) -> Any:
    def loss(rows: Any) -> Any:
        return 0.5 * ((embeddings(rows, positions) - targets) ** 2).sum()

    return jax.grad(loss)(rows)


class Model:
    def __init__(
        self, table: TableConfig, container: StepContainer, optimizer: str, learning_rate: float
    ) -> None:
        self._name = table.name
        self._tables = Tables(table, storage="memory", container=container)
        method = optimizer.removeprefix("fused ")
        self._optimizer = (
            Optimizer(self._tables, NATIVE[optimizer](learning_rate))
            if method == optimizer
            else Optimizer(self._tables, method, lr=learning_rate)
        )

    def _read(self, given: Any) -> tuple[Any, Any]:
        batch = self._tables.lookup({self._name: given}, is_training=False)
        return batch.rows, batch.positions[self._name]

    def look_up(self, ids: Any) -> Any:
        return np.asarray(embeddings(*self._read(ids)))

    def pool(self, ids: Any, lengths: Any, mode: str) -> Any:
        return np.asarray(pool(*self._read((ids, lengths)), mode))

    def weights_gradient(self, ids: Any, lengths: Any, weights: Any) -> Any:
        rows, positions = self._read((ids, lengths))

        def loss(weights: Any) -> Any:
            return 0.5 * (pool(rows, positions, weights=weights) ** 2).sum()

        return np.asarray(jax.grad(loss)(jax.numpy.asarray(pad_weights(weights, positions))))[
            : ids.size
        ]

    def step(self, ids: Any, targets: Any) -> None:
        self.step_in_parts([(ids, targets)])

    def step_in_parts(self, parts: Any) -> None:
        for ids, targets in parts:
            batch = self._tables.lookup({self._name: ids})
            gradients = gradients_of(batch.rows, batch.positions[self._name], targets)
            self._tables.accumulate(batch, gradients)
        self._optimizer.step()


class TestJax(FrameworkTests):
    @pytest.fixture
    def make_model(self) -> MakeModel:
        return Model
