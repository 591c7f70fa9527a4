"""Measures training steps and lookups of TFRA's dynamic embeddings in a separate process.

Run with the Python of an environment with TFRA::

    python tfra_training.py BATCHES.npy DIM ROUNDS

Prints the seconds of each step, then the seconds of each lookup, as two lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

RATE = 0.05


def main(path: str, dim: int, rounds: int) -> None:
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf
    import tensorflow_recommenders_addons as tfra
    import tf_keras

    de: Any = tfra.dynamic_embedding
    batches = [tf.constant(batch) for batch in np.load(path)]
    num_rows = 1 + max(int(np.max(batch)) for batch in batches)
    table = de.get_variable("rows", dim=dim, initializer=0.1, init_size=2 * num_rows)
    for begin in range(0, num_rows, 65_536):
        keys = tf.range(begin, min(begin + 65_536, num_rows), dtype=tf.int64)
        table.upsert(keys, tf.fill([keys.shape[0], dim], 0.1))
    optimizer = de.DynamicEmbeddingOptimizer(tf_keras.optimizers.Adagrad(RATE))
    target = tf.constant(
        np.random.default_rng(0).normal(size=(batches[0].shape[0], dim)).astype(np.float32)
    )

    @tf.function
    def step(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            # As in its embedding_lookup_unique, which does not support graphs.
            keys, inverse = tf.unique(ids)
            found = tf.gather(de.embedding_lookup(table, keys, name="found"), inverse)
            loss = tf.reduce_mean((found - target) ** 2)
        shadows = list(table.trainable_store.values())
        optimizer.apply_gradients(zip(tape.gradient(loss, shadows), shadows, strict=True))
        return loss

    lines = []
    for run in (lambda ids: float(step(ids)), table.lookup):
        for warm in range(3):
            run(batches[warm % len(batches)])
        seconds = []
        for turn in range(rounds):
            start = time.perf_counter()
            run(batches[turn % len(batches)])
            seconds.append(time.perf_counter() - start)
        lines.append(json.dumps(seconds))
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
