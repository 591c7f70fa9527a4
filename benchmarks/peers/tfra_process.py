"""Runs TFRA's CuckooHashTable, controlled over a pipe, because it requires a different TensorFlow.

Run with the Python of a separate environment::

    python tfra_process.py FOLDER

FOLDER contains ``keys.npy`` and ``rows.npy``, which fill the table, and ``batches.npy`` (num_batches, n).
After ``ready`` it replies to each line: to ``time I`` with the seconds of one lookup of batch I, to
``rows I`` with ``done``, after writing the rows to ``found.npy``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def main(folder: Path) -> None:
    import os

    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf
    import tensorflow_recommenders_addons as tfra

    threads = int(sys.argv[2])
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keys, rows = np.load(folder / "keys.npy"), np.load(folder / "rows.npy")
    batches = [tf.constant(batch) for batch in np.load(folder / "batches.npy")]
    table: Any = tfra.dynamic_embedding.CuckooHashTable(
        key_dtype=tf.int64,
        value_dtype=tf.float32,
        default_value=tf.zeros([rows.shape[1]]),
        init_size=2 * len(keys),
    )
    for begin in range(0, len(keys), 65_536):
        part = slice(begin, begin + 65_536)
        table.insert(tf.constant(keys[part]), tf.constant(rows[part]))
    print("ready", flush=True)
    for line in sys.stdin:
        command, number = line.split()
        batch = batches[int(number) % len(batches)]
        start = time.perf_counter()
        found = table.lookup(batch)
        found = found.numpy() if command == "rows" else found
        seconds = time.perf_counter() - start
        if command == "rows":
            np.save(folder / "found.npy", found)
            print("done", flush=True)
        else:
            print(seconds, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
