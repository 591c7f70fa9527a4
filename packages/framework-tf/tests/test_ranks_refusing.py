"""Input that a layer rejects on one rank raises on all ranks at once, and training can continue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

from sparring import StepContainer
from sparring.errors import InvalidArgumentError
from sparring_testing.processes.rank_threads import run_containers
from sparring_tf.layers.embedding import Embedding
from sparring_tf.layers.embedding_bag import EmbeddingBag
from sparring_tf.layers.embedding_collection import EmbeddingCollection
from sparring_tf.layers.table_configs import FeatureConfig, TableConfig

SOON, LONG = 5.0, 30.0
"""Seconds: deadline for the error, and the time that ranks would wait without it."""

IDS = tf.reshape(tf.range(20, dtype=tf.int64), (5, 4))
FRACTIONS = tf.cast(IDS, tf.float32) + 0.5


def collection(container: StepContainer) -> EmbeddingCollection:
    """A pooled feature, and a feature that is not pooled."""
    tables = [
        TableConfig(name="films", embedding_dim=4),
        TableConfig(name="actors", embedding_dim=4, combiner=None),
    ]
    features = {
        name: FeatureConfig(name=name, table=table)
        for name, table in zip(("film", "actor"), tables, strict=True)
    }
    return EmbeddingCollection(features, container=container, storage="memory")


def embedding(container: StepContainer) -> Embedding:
    return Embedding(4, name="films", container=container, storage="memory")


def bag(container: StepContainer) -> EmbeddingBag:
    return EmbeddingBag(4, name="films", container=container, storage="memory")


GOOD = {"film": IDS, "actor": IDS}


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "reading"])
@pytest.mark.parametrize(
    ("make", "good", "bad", "message"),
    [
        pytest.param(embedding, IDS, FRACTIONS, "found dtype float32", id="embedding of fractions"),
        pytest.param(bag, IDS, FRACTIONS, "found dtype float32", id="bag of fractions"),
        pytest.param(bag, IDS, tf.constant(1, tf.int64), "must be (b,)", id="bag of one id"),
        pytest.param(
            collection,
            GOOD,
            {"film": IDS},
            "requires feature 'actor'",
            id="collection without a feature",
        ),
        pytest.param(
            collection,
            GOOD,
            {**GOOD, "film": FRACTIONS},
            "found dtype float32",
            id="pooled fractions",
        ),
        pytest.param(
            collection,
            GOOD,
            {**GOOD, "actor": FRACTIONS},
            "found dtype float32",
            id="fractions one by one",
        ),
    ],
)
def test_a_batch_that_one_rank_rejects_raises_on_all_and_training_continues(
    make: Callable[[StepContainer], Any], good: Any, bad: Any, message: str, is_training: bool
) -> None:
    raised = threading.Barrier(2)

    def body(container: StepContainer) -> InvalidArgumentError:
        layer = make(container)
        begin = time.monotonic()
        with pytest.raises(InvalidArgumentError) as caught:
            layer(bad if container.collective.rank == 1 else good, training=is_training)
        assert time.monotonic() - begin < SOON
        raised.wait(LONG)  # otherwise the end of this rank would also end the other
        layer(good, training=is_training)
        raised.wait(LONG)
        return caught.value

    told, refused = run_containers(2, body, LONG)
    # Keras raises errors of a layer again, with their class and additional text.
    assert "rank 1 cannot look up its rows, so no rank does" in str(told)
    assert message in str(told)
    assert message in str(refused)
    assert "no rank does" not in str(refused)
