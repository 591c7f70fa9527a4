"""Modules on several ranks train like one process on the joined batch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from sparring import LocalGroup, StepContainer
from sparring.contracts import Collective
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig
from sparring_torch.optim.optimizer import Optimizer

NUM_STEPS = 30
BATCH = 6


def run_ranks(world_size: int, body: Callable[[Collective], Any]) -> list[Any]:
    group = LocalGroup(world_size, deadline_seconds=60)
    with ThreadPoolExecutor(world_size) as threads:
        futures = [threads.submit(body, group.join(rank)) for rank in range(world_size)]
        return [future.result() for future in futures]


def lengths_and_ids(step: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ``(features, batch)`` lengths and ids; some ranks have no ids of some features."""
    random = np.random.default_rng((step, rank))
    lengths = random.integers(0, 4, (3, BATCH))
    if (step + rank) % 3 == 0:
        lengths[1] = 0
    if (step + rank) % 5 == 0:
        lengths[:] = 0
    return lengths, random.integers(-20, 20, int(lengths.sum()))


def batch(step: int, ranks: range | list[int]) -> KeyedJaggedTensor:
    """Joins the batches of some ranks."""
    lengths, ids = zip(*(lengths_and_ids(step, rank) for rank in ranks), strict=True)
    parts = []
    for feature in range(3):
        for some, values in zip(lengths, ids, strict=True):
            begin = int(some[:feature].sum())
            parts.append(values[begin : begin + int(some[feature].sum())])
    return KeyedJaggedTensor.from_lengths_sync(
        keys=["a", "b", "c"],
        values=torch.from_numpy(np.concatenate(parts)),
        lengths=torch.from_numpy(np.concatenate(lengths, axis=1).reshape(-1)),
    )


def train(
    container: StepContainer, ranks: range | list[int], optimizer: Any, world_size: int
) -> dict[str, tuple[list[int], dict[int, np.ndarray]]]:
    torch.manual_seed(0)
    tables = [
        EmbeddingBagConfig(name="first", embedding_dim=4, feature_names=["a", "b"]),
        EmbeddingBagConfig(name="second", embedding_dim=3, feature_names=["c"]),
    ]
    bags = EmbeddingBagCollection(tables=tables, container=container)
    native, options = optimizer
    updates = Optimizer(bags, native, lr=0.05, **options)
    # The mean over the batch of each rank, averaged over ranks.
    num_samples = BATCH * len(ranks)
    target = torch.linspace(-1, 1, 11)
    for step in range(NUM_STEPS):
        loss = ((bags(batch(step, ranks)).values() - target) ** 2).sum() / num_samples
        loss.backward()
        updates.step()
        updates.zero_grad()
    held = {}
    for name in container.tables:
        keys: list[int] = []
        rows: dict[int, np.ndarray] = {}
        for chunk in container.storage(name).scan():
            keys += chunk.keys.tolist()
            rows.update(zip(chunk.keys.tolist(), chunk.rows.copy(), strict=True))
        held[name] = (sorted(keys), rows)
    container.close()
    return held


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "Adam": (torch.optim.Adam, {}),
    "shadow-Adam": (torch.optim.Adam, {"update": "shadow"}),
    "shadow-Adagrad": (torch.optim.Adagrad, {"update": "shadow"}),
    "fused-adam": ("adam", {}),
}


@pytest.mark.parametrize(
    ("world_size", "optimizer"),
    [
        pytest.param(size, name, marks=[] if size == 3 or name == "Adam" else pytest.mark.long)
        for size in (1, 2, 3)
        for name in OPTIMIZERS
    ]
    + [pytest.param(size, name, marks=pytest.mark.long) for size in (4, 8) for name in OPTIMIZERS],
)
def test_modules_on_ranks_train_like_one_process(world_size: int, optimizer: str) -> None:
    chosen = OPTIMIZERS[optimizer]

    def body(collective: Collective) -> dict[str, Any]:
        made = StepContainer(collective=collective, rendezvous=ThreadRendezvous(world_size))
        return train(made, [collective.rank], chosen, world_size)

    alone = train(StepContainer(), range(world_size), chosen, world_size)
    held = run_ranks(world_size, body)
    for name, (keys, rows) in alone.items():
        assert sorted(key for each in held for key in each[name][0]) == keys
        for each in held:
            for key, row in each[name][1].items():
                np.testing.assert_allclose(row, rows[key], rtol=1e-6, atol=1e-6)
