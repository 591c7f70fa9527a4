"""A distributed model is saved completely, and loaded."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sparring import StepContainer
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch import (
    CombinedOptimizer,
    DistributedModelParallel,
    Embedding,
    Optimizer,
    distribute,
    restore,
    shared_rows,
)

IDS = torch.arange(1, 9).reshape(2, 4)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4, padding_idx=0)
        self.tags = nn.EmbeddingBag(10, 4)
        self.frozen = nn.Embedding(10, 4).requires_grad_(False)
        self.shared = self.words
        self.score = nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = self.words(ids) + self.frozen(ids) + self.shared(ids)
        return self.score(found.sum(1) + self.tags(ids))


def saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def pickled(model: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(model))


def step(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(IDS).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("copied", [saved, pickled, copy.deepcopy])
def test_a_distributed_model_is_saved_completely(copied: Callable[[nn.Module], Any]) -> None:
    torch.manual_seed(1)
    model: Any = Model()
    taken = model.words.weight
    model, optimizer = distribute(model, torch.optim.Adagrad(model.parameters(), lr=0.1))
    step(model, optimizer)
    other = copied(model)
    assert torch.equal(other(IDS), model(IDS))
    with pytest.raises(InvalidArgumentError, match="'words': found id 10, but the module"):
        other.words(torch.tensor([10]))
    assert other.words is other.shared

    # It trains like the original, with the state of its rows.
    resumed = CombinedOptimizer(
        [
            Optimizer(other, torch.optim.Adagrad, lr=0.1),
            torch.optim.Adagrad(other.parameters(), lr=0.1),
        ]
    )
    dense = copy.deepcopy(optimizer.state_dict()["dense"])
    resumed.optimizers[1][1].load_state_dict(dense)
    step(other, resumed)
    step(model, optimizer)
    torch.testing.assert_close(other(IDS), model(IDS))

    inner = restore(copied(other))
    assert type(inner.words) is nn.Embedding
    torch.testing.assert_close(inner(IDS), other(IDS))
    with pytest.raises(UnsupportedError, match="found a use of a weight from before distribute"):
        taken.sum()


@pytest.mark.parametrize("copied", [saved, copy.deepcopy])
def test_distributed_model_parallel_is_saved_on_one_rank(
    copied: Callable[[nn.Module], Any],
) -> None:
    model = DistributedModelParallel(nn.Sequential(Embedding(4, name="x"), nn.Linear(4, 1)))
    step(model, Optimizer(model, "adagrad", lr=0.1))
    other = copied(model)
    assert torch.equal(other(IDS), model(IDS))
    assert other.container is other.module[0].agent.container is not model.container
    with shared_rows():
        reader = copied(model) if copied is copy.deepcopy else model
    assert reader.container is model.container


def test_distributed_model_parallel_is_not_saved_on_several_ranks() -> None:
    def body(collective: Any) -> str:
        with StepContainer(collective=collective, rendezvous=ThreadRendezvous(2)) as container:
            model = DistributedModelParallel(Embedding(4, name="x"), container=container)
            with pytest.raises(UnsupportedError) as caught:
                saved(model)
            return str(caught.value)

    assert all("on 2 ranks" in each for each in run_ranks(2, body))
