"""Runs the conformance kit of framework adapters, eagerly and in a graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring import StepContainer
from sparring.contracts import TableConfig
from sparring_testing.frameworks.framework_tests import FrameworkTests, MakeModel
from sparring_tf.layers.embedding import Embedding
from sparring_tf.layers.embedding_bag import EmbeddingBag
from sparring_tf.lookup.exchanged_lookup import own_errors
from sparring_tf.optim.optimizer import Optimizer

NATIVE: dict[str, Callable[[float], Any]] = {
    "sgd": keras.optimizers.SGD,
    "adagrad": partial(keras.optimizers.Adagrad, initial_accumulator_value=0.0, epsilon=1e-20),
    "adam": partial(keras.optimizers.Adam, epsilon=1e-8),
}


class Model:
    def __init__(
        self,
        table: TableConfig,
        container: StepContainer,
        optimizer: str,
        learning_rate: float,
        *,
        is_graph: bool,
    ) -> None:
        self._options = {
            "name": table.name,
            "seed": table.seed,
            "initializer": table.initializer,
            "storage": "memory",
            "container": container,
        }
        self._dim = table.dim
        self._layer = Embedding(table.dim, **self._options)
        method = optimizer.removeprefix("fused ")
        if method != optimizer:
            self._optimizer = Optimizer(self._layer, method, learning_rate=learning_rate)
        else:
            self._optimizer = Optimizer(self._layer, NATIVE[optimizer](learning_rate))
        self._step = tf.function(self._stepped) if is_graph else self._stepped

    def look_up(self, ids: Any) -> Any:
        return self._layer(tf.constant(ids)).numpy()

    def pool(self, ids: Any, lengths: Any, mode: str) -> Any:
        bag = EmbeddingBag(self._dim, combiner=mode, shared=True, **self._options)
        return bag(tf.RaggedTensor.from_row_lengths(ids, lengths)).numpy()

    def weights_gradient(self, ids: Any, lengths: Any, weights: Any) -> Any:
        bag = EmbeddingBag(self._dim, combiner="sum", shared=True, **self._options)
        given = tf.constant(weights)
        with tf.GradientTape() as tape:
            tape.watch(given)
            bags = tf.RaggedTensor.from_row_lengths(ids, lengths)
            loss = 0.5 * tf.reduce_sum(bag(bags, bags.with_values(given)) ** 2)
        return tape.gradient(loss, given).numpy()

    def step(self, ids: Any, targets: Any) -> None:
        self.step_in_parts([(ids, targets)])

    def step_in_parts(self, parts: Any) -> None:
        with own_errors():
            self._step([(tf.constant(ids), tf.constant(targets)) for ids, targets in parts])

    def _stepped(self, parts: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n(
                [0.5 * tf.reduce_sum((self._layer(ids) - targets) ** 2) for ids, targets in parts]
            )
        variables = self._layer.trainable_variables
        self._optimizer.apply(tape.gradient(loss, variables), variables)


class TestEager(FrameworkTests):
    @pytest.fixture
    def make_model(self) -> MakeModel:
        return partial(Model, is_graph=False)


class TestGraph(FrameworkTests):
    @pytest.fixture
    def make_model(self) -> MakeModel:
        return partial(Model, is_graph=True)
