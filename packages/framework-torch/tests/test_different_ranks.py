"""Ranks that would update rows differently are rejected before any row changes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from sparring import StepContainer
from sparring.contracts import Collective
from sparring.errors import InvalidArgumentError
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch import Embedding, Optimizer

IDS = torch.arange(16)


def step_on_ranks(optimizer_class: Any, change: Any, **options: Any) -> list[Any]:
    """Returns, per rank, the embeddings after the first step and after a rejected one, and the error;
    `change` receives the rank and the optimizer before the second step."""

    def body(collective: Collective) -> Any:
        with StepContainer(collective=collective, rendezvous=ThreadRendezvous(2)) as container:
            table = Embedding(2, name="items", container=container)
            optimizer = Optimizer(table, optimizer_class, lr=0.5, **options)
            read = []
            error: Exception | None = None
            for step in range(2):
                if step:
                    change(collective.rank, optimizer)
                optimizer.zero_grad()
                table(IDS).sum().backward()
                try:
                    optimizer.step()
                except InvalidArgumentError as found:
                    error = found
                read.append(table.read_embeddings(IDS).numpy())
            return read, error

    return run_ranks(2, body)


def set_lr(rank: int, optimizer: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.25 if rank else 0.5


def set_betas(rank: int, optimizer: Any) -> None:
    optimizer.param_groups[0]["betas"] = (0.9, 0.99 if rank else 0.999)


def load_on_one_rank(rank: int, optimizer: Any) -> None:
    if rank:
        state = optimizer.state_dict()
        state["state"]["items"]["step"] = 0
        optimizer.load_state_dict(state)


@pytest.mark.parametrize(
    ("optimizer_class", "change", "options", "found"),
    [
        ("adagrad", set_lr, {}, r"items\.lr is 0\.5 on rank 0 and 0\.25 on rank 1"),
        ("adam", load_on_one_rank, {}, r"items\.step is 2 on rank 0 and 1 on rank 1"),
        (torch.optim.Adagrad, set_lr, {}, r"lr is 0\.5 on rank 0 and 0\.25 on rank 1"),
        (torch.optim.NAdam, set_lr, {}, r"lr is 0\.5 on rank 0 and 0\.25 on rank 1"),
        (
            torch.optim.AdamW,
            set_betas,
            {"update": "shadow"},
            r"betas is \[0\.9, 0\.999\] on rank 0",
        ),
        (torch.optim.Adam, load_on_one_rank, {}, r"steps\.items is 1 on rank 0 and 0 on rank 1"),
    ],
)
def test_different_hyper_parameters_are_rejected_on_all_ranks(
    optimizer_class: Any, change: Any, options: dict[str, Any], found: str
) -> None:
    for (before, after), error in step_on_ranks(optimizer_class, change, **options):
        assert error is not None
        assert re.search(found, str(error)), error
        assert "step 2 was not applied" in str(error)
        assert np.array_equal(before, after), "no row changed"


def hook_on_one_rank(rank: int, optimizer: Any) -> None:
    if rank:
        optimizer.register_step_post_hook(lambda *_: None)
    optimizer.param_groups[0]["lr"] = torch.tensor(1.0) if rank else 1


def test_equal_numbers_and_different_routes_are_accepted() -> None:
    for (before, after), error in step_on_ranks(torch.optim.Adagrad, hook_on_one_rank):
        assert error is None
        assert not np.array_equal(before, after)
