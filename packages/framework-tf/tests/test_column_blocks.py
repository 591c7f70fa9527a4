"""Layers with column-sharded tables train the bits of one process, or are rejected by name."""

from __future__ import annotations

from typing import Any

import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras
import numpy as np

from sparring import StepContainer
from sparring.contracts import Collective, Reduction, TableSharding
from sparring.errors import UnsupportedError
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.sharded_jobs import collect_pieces, join_pieces, make_batch
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_tf.layers.embedding import Embedding
from sparring_tf.layers.embedding_bag import EmbeddingBag
from sparring_tf.optim.optimizer import Optimizer

PLAN = {"user": TableSharding("column_wise", (1, 0), columns=2)}


def container_of(collective: Collective | None) -> StepContainer:
    return StepContainer(
        collective=collective,
        rendezvous=ThreadRendezvous(2) if collective else None,
        reduction=Reduction.SUM,
        plan=PLAN if collective else None,
    )


def train(layer: Any, optimizer: Any, ranks: Any) -> list[Any]:
    """Three steps with gradients whose sums are exact; returns the looked-up embeddings."""
    seen = []
    for step in range(3):
        ids, gradients = make_batch(step, ranks)
        with tf.GradientTape() as tape:
            output = layer(tf.constant(ids[:, None] if isinstance(layer, EmbeddingBag) else ids))
            loss = tf.reduce_sum(output * tf.constant(gradients))
        seen.append(output.numpy().reshape(-1, 4))
        variables = layer.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
    return seen


@pytest.mark.parametrize(
    ("kind", "sparse", "options"),
    [
        (Embedding, lambda: keras.optimizers.Adagrad(0.125), {}),
        (EmbeddingBag, lambda: keras.optimizers.Adam(0.125), {"update": "shadow"}),
        # The rounding of TensorFlow's rsqrt and pow depends on the position in an array, also by rows.
        (Embedding, lambda: keras.optimizers.Adamax(0.125), {}),
        (EmbeddingBag, lambda: "adam", {"learning_rate": 0.125}),
    ],
    ids=("adagrad", "shadow of adam", "adamax", "method"),
)
def test_layers_and_optimizers_equal_one_process_bit_by_bit(
    kind: Any, sparse: Any, options: dict[str, Any]
) -> None:
    def trained(collective: Collective | None, ranks: Any) -> Any:
        with container_of(collective) as held:
            layer = kind(4, name="user", container=held, storage="memory")
            layer(tf.constant([[1]] if kind is EmbeddingBag else [1]))
            seen = train(layer, Optimizer(layer, sparse(), **options), ranks)
            assert held.entry("user").has_column_blocks == (collective is not None)
            return collect_pieces(held), seen

    rows, seen = trained(None, range(2))
    expected = join_pieces([rows])
    found = run_ranks(2, lambda collective: trained(collective, [collective.rank]), deadline=60)
    assert join_pieces([each[0] for each in found]) == expected
    assert len(expected) > 20
    for step, read in enumerate(seen):
        assert np.concatenate([each[1][step] for each in found]).tobytes() == read.tobytes()


class _ByNorm(keras.optimizers.Optimizer):
    """Updates each row by its gradient divided by the norm of the gradient."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        norms = tf.norm(gradient, axis=1, keepdims=True) + 1e-9
        variable.assign_sub(tf.cast(learning_rate, gradient.dtype) * gradient / norms)


@pytest.mark.parametrize(
    ("native", "words"),
    [
        (lambda: _ByNorm(0.1), "_ByNorm cannot"),
        (lambda: "rowwise_adagrad", "'rowwise_adagrad' cannot"),
    ],
)
def test_optimizers_that_require_whole_rows_are_rejected_by_name(native: Any, words: str) -> None:
    def body(collective: Collective) -> None:
        with container_of(collective) as held:
            layer = Embedding(4, name="user", container=held, storage="memory")
            layer(tf.constant([1]))
            with pytest.raises(UnsupportedError, match=words):
                Optimizer(layer, native())

    run_ranks(2, body, deadline=60)
