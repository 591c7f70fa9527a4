"""Modules on several ranks train like one process on the joined batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from sparring import StepContainer
from sparring_testing.processes.rank_threads import run_containers
from sparring_testing.processes.table_steps import RowBytes, join_rows, read_tables
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig
from sparring_torch.optim.optimizer import Optimizer

NUM_STEPS = 30
BATCH = 6


def batch_of_ranks(step: int, ranks: Sequence[int], *, weights: bool = False) -> KeyedJaggedTensor:
    """Joins the batches of ranks. Some ranks have no ids of some features, or no ids at all."""
    parts: list[list[np.ndarray]] = [[], [], []]
    lengths = np.zeros((3, len(ranks), BATCH), np.int64)
    for place, rank in enumerate(ranks):
        random = np.random.default_rng((step, rank))
        lengths[:, place] = random.integers(0, 5, (3, BATCH))
        if (step + rank) % 3 == 0:
            lengths[1, place] = 0
        if (step + rank) % 5 == 0:
            lengths[:, place] = 0
        for own, count in zip(parts, lengths[:, place].sum(1), strict=True):
            own.append(random.integers(-20, 20, count))
    ids = np.concatenate([each for own in parts for each in own])
    return KeyedJaggedTensor.from_lengths_sync(
        keys=["a", "b", "c"],
        values=torch.from_numpy(ids),
        lengths=torch.from_numpy(lengths.reshape(-1)),
        weights=torch.linspace(0.5, 2, len(ids)) if weights else None,
    )


def train(container: StepContainer, ranks: Sequence[int], optimizer: Any) -> dict[str, RowBytes]:
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
        loss = ((bags(batch_of_ranks(step, ranks)).values() - target) ** 2).sum() / num_samples
        loss.backward()
        updates.step()
        updates.zero_grad()
    return read_tables(container)


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

    def body(container: StepContainer) -> dict[str, RowBytes]:
        return train(container, [container.collective.rank], chosen)

    with StepContainer() as container:
        alone = train(container, range(world_size), chosen)
    for name, found in join_rows(run_containers(world_size, body)).items():
        assert found.keys() == alone[name].keys()
        for key, row in found.items():
            one, other = (np.frombuffer(each, "float32") for each in (row, alone[name][key]))
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
