"""Measures training steps of DLRM with TFRA's dynamic embeddings in a separate process.

Run with the Python of an environment with TFRA::

    python tfra_dlrm.py BATCHES.npz DIM HIDDEN ROUNDS

BATCHES.npz contains ``integers`` (num_batches, b, k), ``ids`` (num_batches, b, features) and ``labels``
(num_batches, b). Prints the seconds of each step as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

RATE = 0.05


def main(path: str, dim: int, hidden: int, rounds: int) -> None:
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf
    import tensorflow_recommenders_addons as tfra
    import tf_keras

    de: Any = tfra.dynamic_embedding
    data = np.load(path)
    arrays = (data["integers"], data["ids"], data["labels"])
    batches = [tuple(map(tf.constant, each)) for each in zip(*arrays, strict=True)]
    num_features = data["ids"].shape[2]
    tables = [de.get_variable(f"cat_{place}", dim=dim) for place in range(num_features)]

    def mlp(*widths: int) -> Any:
        return tf_keras.Sequential(
            [tf_keras.layers.Dense(width, activation="relu") for width in widths]
        )

    bottom, top = mlp(hidden, dim), mlp(hidden)
    last = tf_keras.layers.Dense(1)
    rows, columns = np.tril_indices(num_features + 1, -1)
    pairs = (rows * (num_features + 1) + columns).tolist()

    def logits(integers: Any, ids: Any) -> Any:
        found = []
        for place, each in enumerate(tf.unstack(ids, axis=1)):
            # As in its embedding_lookup_unique, which does not support graphs.
            keys, inverse = tf.unique(each)
            embeddings = de.embedding_lookup(tables[place], keys, name=f"found_{place}")
            found.append(tf.gather(embeddings, inverse))
        dense = bottom(integers)
        vectors = tf.stack([dense, *found], axis=1)
        products = tf.matmul(vectors, vectors, transpose_b=True)
        flat = tf.reshape(products, [-1, (num_features + 1) ** 2])
        return tf.squeeze(last(top(tf.concat([dense, tf.gather(flat, pairs, axis=1)], axis=1))), 1)

    sparse = de.DynamicEmbeddingOptimizer(tf_keras.optimizers.Adagrad(RATE))
    adam = tf_keras.optimizers.Adam()

    @tf.function
    def step(integers: Any, ids: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            found = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits(integers, ids))
            loss = tf.reduce_mean(found)
        shadows = [each for table in tables for each in table.trainable_store.values()]
        ordinary = [each for part in (bottom, top, last) for each in part.trainable_variables]
        of_shadows, of_ordinary = tape.gradient(loss, [shadows, ordinary])
        sparse.apply_gradients(zip(of_shadows, shadows, strict=True))
        adam.apply_gradients(zip(of_ordinary, ordinary, strict=True))
        return loss

    for batch in batches:
        float(step(*batch))
    seconds = []
    for turn in range(rounds):
        start = time.perf_counter()
        float(step(*batches[turn % len(batches)]))
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
