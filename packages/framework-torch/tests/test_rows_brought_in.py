"""`from_pretrained` writes initial rows, and `read_embeddings` reads rows."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from sparring import StepContainer
from sparring.errors import InvalidArgumentError
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch import (
    DistributedModelParallel,
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    Optimizer,
)

WEIGHTS = torch.arange(12.0).reshape(6, 2)


@pytest.mark.parametrize("kind", [Embedding, EmbeddingBag])
def test_a_table_starts_with_given_weights_and_continues_to_train(kind: Any) -> None:
    theirs = getattr(torch.nn, kind.__name__).from_pretrained(WEIGHTS.clone(), freeze=False)
    ours = kind.from_pretrained(WEIGHTS, freeze=False, storage="memory")
    optimizers = [
        Optimizer(ours, torch.optim.Adagrad, lr=0.5),
        torch.optim.Adagrad(theirs.parameters(), lr=0.5),
    ]
    ids = torch.tensor([[0, 5], [3, 5]])
    for module, optimizer in zip((ours, theirs), optimizers, strict=True):
        torch.testing.assert_close(module(ids), theirs(ids))
        module(ids).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(ours.read_embeddings(range(6)), theirs.weight.detach())
    assert sum(ours.num_rows().values()) == 6


def test_rows_are_frozen_by_default_as_in_torch() -> None:
    module = Embedding.from_pretrained(WEIGHTS, storage="memory")
    model = torch.nn.Sequential(module, torch.nn.Linear(2, 1))
    optimizer = Optimizer(model, torch.optim.SGD, lr=1.0)
    for _ in range(2):
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(module.read_embeddings(range(6)), WEIGHTS)


def test_a_copy_has_rows_that_are_not_written_yet() -> None:
    module = Embedding.from_pretrained(WEIGHTS, storage="memory")
    copied = copy.deepcopy(module)
    assert torch.equal(module(torch.tensor([3])), WEIGHTS[3:4])
    assert torch.equal(copied(torch.tensor([3])), WEIGHTS[3:4])


def test_ids_and_padding_of_weights() -> None:
    module = Embedding.from_pretrained(
        WEIGHTS.numpy(), [9, -1, 7, 2**62, 0, 3], storage="memory", padding_idx=0
    )
    assert module(torch.tensor([2**62, -1, 0])).tolist() == [[6, 7], [2, 3], [0, 0]]
    assert sum(module.num_rows().values()) == 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_table_has_the_dtype_of_the_weights(dtype: torch.dtype) -> None:
    module = Embedding.from_pretrained(WEIGHTS.to(dtype), name="item", storage="memory")
    assert torch.equal(module.read_embeddings([5]).to(dtype), WEIGHTS[5:].to(dtype))
    assert module.agent.container.tables["item"].dtype == str(dtype).removeprefix("torch.")


def test_weights_and_ids_that_do_not_match_are_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match=r"weights must have shape \(n, embedding_dim\)"):
        Embedding.from_pretrained(torch.ones(3))
    with pytest.raises(InvalidArgumentError, match="must be 6 integers"):
        Embedding.from_pretrained(WEIGHTS, [1, 2])
    with pytest.raises(InvalidArgumentError, match="found a repeated id"):
        Embedding.from_pretrained(WEIGHTS, [1, 2, 3, 4, 5, 1], storage="memory")


def test_a_table_on_a_device_starts_with_given_weights(place: Any) -> None:
    module = Embedding.from_pretrained(WEIGHTS, freeze=False, **place.table)
    Optimizer(module, "adagrad", lr=0.1)
    assert torch.equal(module(torch.tensor([5, 0])), WEIGHTS[[5, 0]].to(place.device))
    assert torch.equal(module.read_embeddings([5, 0]).cpu(), WEIGHTS[[5, 0]].cpu())


def test_rows_wait_for_the_state_of_the_optimizer() -> None:
    module = Embedding.from_pretrained(WEIGHTS, name="item", storage="memory")
    optimizer = Optimizer(module, torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.25)
    (chunk,) = optimizer.container.storage("item").scan()
    assert chunk.rows[:, 2:].tolist() == [[0.25, 0.25]] * 6


def test_rows_are_sent_to_their_ranks_when_the_model_gets_a_collective() -> None:
    def body(collective: Any) -> Any:
        with StepContainer(collective=collective, rendezvous=ThreadRendezvous(2)) as container:
            model = torch.nn.Sequential(
                Embedding.from_pretrained(WEIGHTS, name="item", storage="memory")
            )
            model = DistributedModelParallel(model, container=container)
            Optimizer(model, "adagrad", lr=0.1)
            found = model.module[0].read_embeddings(range(collective.rank, 6))
            return container.num_rows("item"), found

    (few, one), (rest, other) = run_ranks(2, body)
    assert few + rest == 6
    assert torch.equal(one, WEIGHTS)
    assert torch.equal(other, WEIGHTS[1:])


def test_embeddings_are_read_without_side_effects() -> None:
    bags = EmbeddingBagCollection(
        [EmbeddingBagConfig(name=name, embedding_dim=2) for name in ("item", "user")],
        storage="memory",
    )
    Optimizer(bags, torch.optim.SGD, lr=1.0)
    found = bags.read_embeddings(np.array([3, 3, 4]), "user")
    assert found.shape == (3, 2)
    assert not found.requires_grad
    assert torch.equal(found[0], found[1])
    assert bags.num_rows() == {"item": 0, "user": 0}
    assert bags.read_embeddings([], "user").shape == (0, 2)
    with pytest.raises(InvalidArgumentError, match="did you mean 'user'"):
        bags.read_embeddings([1], "usr")
    with pytest.raises(InvalidArgumentError, match="found table None; known: 'item', 'user'"):
        bags.read_embeddings([1])
