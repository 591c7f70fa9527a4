"""`torch.optim.SparseAdam` for rows gives the same embeddings as for sparse parameters."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparring import StepContainer
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch import CombinedOptimizer, Embedding, Optimizer, distribute, restore
from sparring_torch.torchrec import apply_optimizer_in_backward

IDS = torch.tensor([3, 3, 7, 2**40])
HYPER: dict[str, Any] = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-8}


def same_start() -> tuple[Embedding, nn.Embedding]:
    ours = Embedding(5, name="item", storage="memory")
    return ours, nn.Embedding(3, 5, _weight=ours.read_embeddings([3, 7, 2**40]), sparse=True)


def train(model: nn.Module, ids: torch.Tensor, optimizer: Any, scale: float) -> None:
    factor = torch.linspace(-1, 1, 20).reshape(4, 5) * scale
    for step in range(40):
        given = slice(0, 4 - step % 3)
        if optimizer is not None:
            optimizer.zero_grad()
        (model(ids[given]) * factor[given]).sum().backward()
        if optimizer is not None:
            optimizer.step()


Make = Callable[[Embedding], Any]
WAYS: dict[str, Make] = {
    "class": lambda ours: Optimizer(ours, torch.optim.SparseAdam, **HYPER),
    "shadow": lambda ours: Optimizer(ours, torch.optim.SparseAdam, update="shadow", **HYPER),
    "maximize": lambda ours: Optimizer(ours, torch.optim.SparseAdam, maximize=True, **HYPER),
    "name": lambda ours: Optimizer(
        ours, "sparse_adam", lr=HYPER["lr"], beta1=HYPER["betas"][0], beta2=HYPER["betas"][1]
    ),
    "combined": lambda ours: CombinedOptimizer([Optimizer(ours, torch.optim.SparseAdam, **HYPER)]),
    "in backward": lambda ours: apply_optimizer_in_backward(
        torch.optim.SparseAdam, ours.parameters(), HYPER
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scale", [1.0, 1e-7], ids=["large", "near eps"])
def test_rows_equal_torch_at_the_end(way: str, scale: float) -> None:
    ours, theirs = same_start()
    before = theirs.weight.detach().clone()
    is_rising = way == "maximize"
    train(ours, IDS, WAYS[way](ours), scale)
    own = torch.optim.SparseAdam(theirs.parameters(), maximize=is_rising, **HYPER)
    train(theirs, torch.tensor([0, 0, 1, 2]), own, scale)
    found = ours.read_embeddings([3, 7, 2**40])
    torch.testing.assert_close(found, theirs.weight.detach(), rtol=1e-5, atol=1e-6)
    assert (found - before).abs().max() > 0.1  # Adam would differ by 4e-2 if gradients are small


def test_the_class_uses_the_fused_route_and_keeps_its_names() -> None:
    ours, _ = same_start()
    optimizer = Optimizer(ours, torch.optim.SparseAdam, **HYPER)
    assert optimizer.routes == {"item": "sparse_adam"}
    (group,) = optimizer.param_groups
    assert {name: group[name] for name in HYPER} == HYPER
    assert optimizer.state_dict()["native"] == "SparseAdam"
    with pytest.raises(ValueError, match="Invalid epsilon value"):
        Optimizer(Embedding(5, storage="memory"), torch.optim.SparseAdam, eps=-1.0)


@pytest.mark.parametrize("update", ["auto", "shadow"])
def test_ranks_have_the_rows_of_the_joined_batch(update: str) -> None:
    def body(collective: Any) -> torch.Tensor:
        with StepContainer(collective=collective, rendezvous=ThreadRendezvous(2)) as container:
            ours = Embedding(5, name="item", storage="memory", container=container)
            optimizer = Optimizer(ours, torch.optim.SparseAdam, update=update, **HYPER)
            train(ours, IDS.flip(0) if collective.rank else IDS, optimizer, 1e-7)
            return ours.read_embeddings([3, 7, 2**40])

    theirs = same_start()[1]
    optimizer = torch.optim.SparseAdam(theirs.parameters(), **HYPER)
    places = torch.tensor([0, 0, 1, 2])
    both = torch.stack([places, places.flip(0)], 1)
    train(_Mean(theirs), both, optimizer, 1e-7)
    for found in run_ranks(2, body):
        torch.testing.assert_close(found, theirs.weight.detach(), rtol=1e-5, atol=1e-6)


class _Mean(nn.Module):
    """Embeddings of the ids of all ranks, averaged like their gradients."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor = self.embedding(ids).mean(1)
        return mean


@pytest.mark.parametrize("is_served", [False, True], ids=["distribute", "service"])
def test_a_distributed_program_keeps_the_formula(is_served: bool, tmp_path: Path) -> None:
    ids, models = torch.tensor([0, 0, 1, 2]), []
    for _ in range(2):
        torch.manual_seed(1)
        words = nn.Embedding(3, 5, sparse=True)
        models.append(nn.Sequential(OrderedDict(words=words)))
    ours, theirs = models
    train(theirs, ids, torch.optim.SparseAdam(theirs.parameters(), **HYPER), 1e-7)
    optimizer: Any = torch.optim.SparseAdam(ours.parameters(), **HYPER)
    if is_served:
        serve = pytest.importorskip("sparring_serve", reason="sparring-serve is not installed")
        hyper = {"lr": 0.05, "beta1": 0.8, "beta2": 0.95}
        tables = {"words": {"dim": 5, "update_method": "sparse_adam", "hyper": hyper}}
        parameters = {"tables": tables, "folders": [str(tmp_path)], "start": None}
        config = serve.ServingConfig.model_validate({"parameters": parameters})
        with serve.open_parameter_server(config, address="127.0.0.1:0") as server:
            file = tmp_path / "serving.yaml"
            file.write_text(json.dumps({"shards": [[server.address]], "parameters": parameters}))
            ours, optimizer = distribute(ours, optimizer, service=file)
            train(ours, ids, optimizer, 1e-7)
            ours = restore(ours)
    else:
        ours, optimizer = distribute(ours, optimizer)
        train(ours, ids, optimizer, 1e-7)
        ours = restore(ours)
    torch.testing.assert_close(ours[0].weight, theirs[0].weight, rtol=1e-5, atol=1e-6)
