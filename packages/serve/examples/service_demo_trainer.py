"""A trainer of `service_demo.py`: a program of one process, whose table a service keeps.

    python service_demo_trainer.py torch|tensorflow parameters.yaml SEED FOLDER

Items have hidden vectors. An example is a bag of items with the mean of their vectors; the table learns
the vectors from that. A step pulls the rows of a batch and pushes their gradients; a line on standard
output tells when it ended, how long it took, and the loss. The trainer ends when FOLDER/stop is there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sparring import StorageChoice

TABLE, DIM, ITEMS, BAG, BATCH = "item", 8, 5000, 4, 256
LEARNING_RATE = 0.2
# Trainers share the machine with servers and their clients.
SECONDS_BETWEEN_STEPS = 0.02
HIDDEN = np.random.default_rng(0).normal(size=(ITEMS, DIM)).astype(np.float32)

Step = Callable[[npt.NDArray[np.int64], npt.NDArray[np.float32]], float]


def main() -> None:
    framework, config, seed, folder = sys.argv[1:]
    options = {"config": config, "role": "parameters", "wait": "applied", "deadline_seconds": 60.0}
    make = {"torch": torch_step, "tensorflow": tensorflow_step}[framework]
    step = make(StorageChoice("remote", options))
    generator = np.random.default_rng(int(seed))
    while not Path(folder, "stop").exists():
        # Few items are in many bags.
        ids = generator.zipf(1.2, (BATCH, BAG)) % ITEMS
        begin = time.monotonic()
        loss = step(ids, HIDDEN[ids].mean(axis=1))
        told = {"at": time.time(), "seconds": time.monotonic() - begin, "loss": loss}
        print(json.dumps(told), flush=True)
        time.sleep(SECONDS_BETWEEN_STEPS)


def torch_step(storage: StorageChoice) -> Step:
    import torch

    import sparring_torch

    torch.set_num_threads(1)
    module = sparring_torch.EmbeddingBag(DIM, name=TABLE, mode="mean", storage=storage)
    optimizer = sparring_torch.Optimizer(module, "adagrad", lr=LEARNING_RATE)

    def step(ids: npt.NDArray[np.int64], wanted: npt.NDArray[np.float32]) -> float:
        loss = (module(torch.from_numpy(ids)) - torch.from_numpy(wanted)).square().sum(1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def tensorflow_step(storage: StorageChoice) -> Step:
    import keras
    import tensorflow

    import sparring_tf

    tensorflow.config.threading.set_intra_op_parallelism_threads(1)
    layer = sparring_tf.EmbeddingBag(DIM, name=TABLE, combiner="mean", storage=storage)
    model = keras.Sequential([keras.Input((BAG,), dtype="int64"), layer])

    def loss(wanted: object, found: object) -> object:
        return keras.ops.mean(keras.ops.sum(keras.ops.square(found - wanted), axis=1))

    model.compile(optimizer=sparring_tf.Optimizer(model, "adagrad", lr=LEARNING_RATE), loss=loss)
    return lambda ids, wanted: float(model.train_on_batch(ids, wanted))


if __name__ == "__main__":
    main()
