"""Trains the quickstart's DLRM in JAX: the synthetic click log of a configuration, its model and rates.

    python packages/framework-jax/examples/dlrm.py configs/quickstart.yaml

Needs sparring-train for the configuration and the log, and sparring-hkv where the configuration says so.
The layers are a pytree of arrays, as anywhere in JAX; what is sparring's is marked by numbers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sparring import StepContainer, make_plugin_manager
from sparring_jax import Batch, Optimizer, Tables, embeddings
from sparring_train import RunConfig, load_config
from sparring_train.loop.column_source import ColumnSource
from sparring_train.run.ranks import Ranks


class Run(NamedTuple):
    """Result of a training."""

    losses: list[float]
    metrics: Mapping[str, float]
    seconds: float
    num_compilations: int


def initial_weights(config: RunConfig, num_numbers: int, num_features: int) -> dict[str, Any]:
    """Weights of the layers: those over the numbers, and those over the products."""
    sizes: Any = config.model
    generator = np.random.default_rng(config.seed)
    num_products = num_features * (num_features + 1) // 2

    def layers(widths: list[int]) -> list[dict[str, Any]]:
        made = []
        for below, above in pairwise(widths):
            bound = below**-0.5
            w = generator.uniform(-bound, bound, (below, above))
            made.append({"w": jnp.asarray(w, jnp.float32), "b": jnp.zeros(above, jnp.float32)})
        return made

    return {
        "dense": layers([num_numbers, *sizes.bottom_mlp, sizes.embedding_dim]),
        "over": layers([sizes.embedding_dim + num_products, *sizes.top_mlp, 1]),
    }


def logits(weights: Any, rows: Any, positions: Any, numbers: Any) -> Any:
    """``(b,)``: dot products of all pairs of vectors, between layers. Places are of each feature."""
    dense = numbers
    for layer in weights["dense"]:
        dense = jax.nn.relu(dense @ layer["w"] + layer["b"])
    # 2. The embeddings of a feature: (b, dim).
    vectors = jnp.stack([dense, *(embeddings(rows, each) for each in positions)], axis=1)
    first, second = np.triu_indices(vectors.shape[1], 1)
    products = jnp.einsum("bid,bjd->bij", vectors, vectors)[:, first, second]
    found = jnp.concatenate([dense, products], axis=1)
    for layer in weights["over"][:-1]:
        found = jax.nn.relu(found @ layer["w"] + layer["b"])
    last = weights["over"][-1]
    return (found @ last["w"] + last["b"])[:, 0]


class Training:
    """A DLRM, its tables and optimizers.

    Args:
        config: of a DLRM; its optimizers are an update method for rows and Adam for layers.
        weights: that the layers begin with; None: `initial_weights`.
    """

    def __init__(self, config: RunConfig, weights: dict[str, Any] | None = None) -> None:
        self.container = StepContainer()
        self.source = ColumnSource(config, make_plugin_manager(), self.container)
        schema, model = self.source.data.schema, self.source.model_request()
        # 1. The tables, the features that look up in them, and what updates their rows.
        features = {each.name: each.table_name for each in schema.features}
        self.tables = Tables(
            list(model.tables.values()),
            features=features,
            storage=model.storage,
            container=self.container,
        )
        sparse, dense = config.optimizer.sparse, config.optimizer.dense
        self.rows_optimizer = Optimizer(self.tables, sparse.name, lr=sparse.lr)
        if weights is None:
            weights = initial_weights(config, len(schema.numbers), len(features))
        dense_optimizer = optax.adam(dense.lr)
        self.weights, self.state = weights, dense_optimizer.init(weights)
        self.num_compilations = 0

        def step(
            weights: Any, state: Any, rows: Any, positions: Any, numbers: Any, labels: Any
        ) -> Any:
            self.num_compilations += 1  # while it is traced

            def loss(weights: Any, rows: Any) -> Any:
                found = logits(weights, rows, positions, numbers)
                return optax.sigmoid_binary_cross_entropy(found, labels).mean()

            # 3. Rows are an argument like the weights, and have gradients like these.
            value, (gradients, of_rows) = jax.value_and_grad(loss, argnums=(0, 1))(weights, rows)
            updates, state = dense_optimizer.update(gradients, state, weights)
            return optax.apply_updates(weights, updates), state, value, of_rows

        self.jitted = jax.jit(step)
        self._predict = jax.jit(lambda *given: jax.nn.sigmoid(logits(*given)))

    def look_up(self, given: Any, *, is_training: bool) -> tuple[Batch, list[Any]]:
        """The rows of a batch, and the places of each feature's ids."""
        ids = {name: column.ids for name, column in given.ids.items()}
        batch = self.tables.lookup(ids, is_training=is_training)
        return batch, [batch.positions[name] for name in self.tables.features]

    def step(self, given: Any) -> float:
        """One step; returns the loss before it."""
        batch, positions = self.look_up(given, is_training=True)
        self.weights, self.state, loss, of_rows = self.jitted(
            self.weights, self.state, batch.rows, positions, given.numbers, given.labels
        )
        # 4. The rows change.
        self.rows_optimizer.step(batch, of_rows)
        return float(loss)

    def predict(self, given: Any) -> Any:
        """Probabilities of a click."""
        batch, positions = self.look_up(given, is_training=False)
        return np.asarray(self._predict(self.weights, batch.rows, positions, given.numbers))


def train(
    config: RunConfig, *, max_steps: int | None = None, weights: dict[str, Any] | None = None
) -> Run:
    """One training, and its quality on the test part; see `Training`."""
    training = Training(config, weights)
    begin = time.perf_counter()
    losses = [training.step(each) for each in islice(training.source.batches(0), max_steps)]
    seconds = time.perf_counter() - begin
    with training.container as container:
        ranks = Ranks(container.collective, container.quiesce)
        metrics = training.source.evaluate(training.predict, ranks)
    return Run(losses, metrics, seconds, training.num_compilations)


def main(path: str) -> None:
    """Trains what a configuration describes, and prints its quality."""
    run = train(load_config(Path(path)))
    print(f"{len(run.losses)} steps in {run.seconds:.1f} s, {run.num_compilations} compilations")
    print(", ".join(f"{name} {value:.4f}" for name, value in run.metrics.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])
