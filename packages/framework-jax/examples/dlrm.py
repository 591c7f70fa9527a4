"""Trains the quickstart's DLRM in JAX, on the synthetic click log that a configuration describes.

    python packages/framework-jax/examples/dlrm.py configs/quickstart.yaml

Requires sparring-train for the configuration and the log, and sparring-hkv if the configuration uses it.
The layers are a pytree of arrays, as usual in JAX. Numbered comments mark the code that uses sparring.
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
    """Returns random weights of the layers below (`dense`) and above (`over`) the dot products."""
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
    """Returns ``(b,)`` logits; `positions` contains one element per feature."""
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
    """A DLRM with its tables and optimizers.

    Args:
        config: configuration of a DLRM, with an update method for rows and Adam for the layers.
        weights: initial weights of the layers. Defaults to `initial_weights`.
    """

    def __init__(self, config: RunConfig, weights: dict[str, Any] | None = None) -> None:
        self.container = StepContainer()
        self.source = ColumnSource(config, make_plugin_manager(), self.container)
        schema, model = self.source.data.schema, self.source.model_request()
        # 1. The tables, the features that look up in them, and the optimizer of their rows.
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
            self.num_compilations += 1  # only runs when JAX traces the step

            def loss(weights: Any, rows: Any) -> Any:
                found = logits(weights, rows, positions, numbers)
                return optax.sigmoid_binary_cross_entropy(found, labels).mean()

            # 3. Rows are an argument like the weights, and have gradients in the same way.
            value, (gradients, of_rows) = jax.value_and_grad(loss, argnums=(0, 1))(weights, rows)
            updates, state = dense_optimizer.update(gradients, state, weights)
            return optax.apply_updates(weights, updates), state, value, of_rows

        self.jitted = jax.jit(step)
        self._predict = jax.jit(lambda *given: jax.nn.sigmoid(logits(*given)))

    def look_up(self, given: Any, *, is_training: bool) -> tuple[Batch, list[Any]]:
        """Looks up the ids of a batch, and returns it with the positions of each feature's ids."""
        ids = {name: column.ids for name, column in given.ids.items()}
        batch = self.tables.lookup(ids, is_training=is_training)
        return batch, [batch.positions[name] for name in self.tables.features]

    def step(self, given: Any) -> float:
        """Trains one batch and returns its loss before the update."""
        batch, positions = self.look_up(given, is_training=True)
        self.weights, self.state, loss, of_rows = self.jitted(
            self.weights, self.state, batch.rows, positions, given.numbers, given.labels
        )
        # 4. The optimizer updates the rows.
        self.rows_optimizer.step(batch, of_rows)
        return float(loss)

    def predict(self, given: Any) -> Any:
        """Returns the predicted click probabilities."""
        batch, positions = self.look_up(given, is_training=False)
        return np.asarray(self._predict(self.weights, batch.rows, positions, given.numbers))


def train(
    config: RunConfig, *, max_steps: int | None = None, weights: dict[str, Any] | None = None
) -> Run:
    """Trains a model and evaluates it on the test split; see `Training`."""
    training = Training(config, weights)
    begin = time.perf_counter()
    losses = [training.step(each) for each in islice(training.source.batches(0), max_steps)]
    seconds = time.perf_counter() - begin
    with training.container as container:
        ranks = Ranks(container.collective, container.quiesce)
        metrics = training.source.evaluate(training.predict, ranks)
    return Run(losses, metrics, seconds, training.num_compilations)


def main(path: str) -> None:
    """Trains the model of a configuration file and prints its metrics."""
    run = train(load_config(Path(path)))
    print(f"{len(run.losses)} steps in {run.seconds:.1f} s, {run.num_compilations} compilations")
    print(", ".join(f"{name} {value:.4f}" for name, value in run.metrics.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])
