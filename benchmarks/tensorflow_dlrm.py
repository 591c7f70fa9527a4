"""A training step of DLRM in TensorFlow, compared with the same step with TFRA's dynamic embeddings."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.measuring import Figure, alternate

__all__ = ["measure_dlrm"]

DIM, HIDDEN, BATCH, FEATURES, INTEGERS, RATE = 16, 64, 2_048, 26, 13, 0.05
NUM_BATCHES, NUM_IDS, BAR = 16, 100_000, 3.0


def measure_dlrm(rounds: int) -> list[Figure]:
    """Measures both one after another, because TFRA's TensorFlow needs a different process.

    Args:
        rounds: number of timed steps, after one warm-up step per batch.
    """
    generator = np.random.default_rng(0)
    ids = generator.zipf(1.1, (NUM_BATCHES, BATCH, FEATURES)) % NUM_IDS
    integers = generator.normal(size=(NUM_BATCHES, BATCH, INTEGERS)).astype(np.float32)
    labels = (generator.random((NUM_BATCHES, BATCH)) < 0.25).astype(np.float32)
    ours = _ours(integers, ids, labels, rounds)
    python = os.environ.get("SPARRING_BENCHMARK_TFRA_PYTHON")
    what = f"training step of DLRM, {FEATURES} features × {BATCH:,} ids × {DIM}"
    if python is None:
        return [Figure(what=what, value=f"{ours * 1e3:.1f} ms")]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "batches.npz"
        np.savez(path, integers=integers, ids=ids, labels=labels)
        peer = Path(__file__).parent / "peers" / "tfra_dlrm.py"
        ran = subprocess.run(
            [python, str(peer), str(path), str(DIM), str(HIDDEN), str(rounds)],
            capture_output=True,
            text=True,
            check=True,
        )
    theirs = median(json.loads(ran.stdout.splitlines()[-1]))
    ratio = theirs / ours
    return [
        Figure(
            what=f"{what}, compared with TFRA",
            value=f"{ratio:.1f} ×",
            bar=f"≥ {BAR:.0f} ×",
            is_reached=ratio >= BAR,
            detail=f"{ours * 1e3:.1f} ms; over TFRA's CuckooHashTable {theirs * 1e3:.1f} ms",
            ratio=ratio,
        )
    ]


def _ours(integers: Any, ids: Any, labels: Any, rounds: int) -> float:
    import keras
    import tensorflow as tf

    from sparring_tf import DLRM, EmbeddingCollection, FeatureConfig, Optimizer, TableConfig

    names = [f"cat_{place}" for place in range(FEATURES)]
    tables = [TableConfig(name=name, embedding_dim=DIM, combiner="sum") for name in names]
    collection = EmbeddingCollection(
        {table.name: FeatureConfig(name=table.name, table=table) for table in tables}
    )
    model = DLRM(collection, integers[0].shape[1], [HIDDEN, DIM], [HIDDEN, 1])
    optimizer = Optimizer(model, "adagrad", learning_rate=RATE, dense=keras.optimizers.Adam())
    batches = [tuple(map(tf.constant, each)) for each in zip(integers, ids, labels, strict=True)]
    model(batches[0][:2])
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function
    def step(integers: Any, ids: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.squeeze(model((integers, ids), training=True), 1)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    for batch in batches:
        float(step(*batch))
    turns = iter(range(10**9))
    timed = {"ours": lambda: float(step(*batches[next(turns) % NUM_BATCHES]))}
    return alternate(timed, rounds=rounds)["ours"].median
