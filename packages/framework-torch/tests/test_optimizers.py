"""Native optimizers update each row as if it were a parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.modules.embedding import Embedding
from sparring_torch.optim import native_updater
from sparring_torch.optim.block_step import BLOCK_BYTES
from sparring_torch.optim.optimizer import Optimizer
from sparring_torch.optim.optimizer_probe import probe

DIM = 3


class SignMomentum(torch.optim.Optimizer):
    """A third-party optimizer like Lion (Chen et al., arXiv 2302.06675), which replaces its state."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.01, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                momentum = state.setdefault("momentum", torch.zeros_like(p))
                state["num_steps"] = state.get("num_steps", 0) + 1
                mixed = momentum * group["beta"] + p.grad * (1 - group["beta"])
                p.data = p.data - group["lr"] * mixed.sign() / state["num_steps"]
                state["momentum"] = mixed


class OtherSparseAdam(torch.optim.SparseAdam):
    """A subclass may compute something else."""


class Normalised(torch.optim.Optimizer):
    """Divides by the norm of the complete parameter, like LAMB, so that rows depend on each other."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad / (p.grad.norm() + 1e-9), alpha=-group["lr"])


CHOICES: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.3}),
    (torch.optim.Adam, {"lr": 0.1, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}),
    (torch.optim.RMSprop, {"lr": 0.1, "centered": True, "momentum": 0.5}),
    (torch.optim.Adadelta, {"lr": 1.0}),
    (torch.optim.NAdam, {"lr": 0.1}),
    (torch.optim.RAdam, {"lr": 0.1}),
    (torch.optim.Adamax, {"lr": 0.1}),
    (SignMomentum, {"lr": 0.1}),
]
NAMES = [f"{native.__name__}-{len(hyper)}" for native, hyper in CHOICES]
SOME_CHOICES = pytest.mark.parametrize(
    ("native", "hyperparameters"),
    # Every third setting is in short runs.
    [
        pytest.param(*each, id=name, marks=pytest.mark.slow if number % 3 else [])
        for number, (each, name) in enumerate(zip(CHOICES, NAMES, strict=True))
    ],
)


@pytest.mark.parametrize(
    ("update", "block_bytes"),
    [("auto", BLOCK_BYTES), ("shadow", BLOCK_BYTES), ("shadow", 1)],
    ids=["auto", "at once", "row by row"],
)
@SOME_CHOICES
def test_rows_change_like_one_parameter(
    place: Any,
    native: type[torch.optim.Optimizer],
    hyperparameters: dict[str, Any],
    update: str,
    block_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every step has all keys, so that a table equals a dense parameter, including state and scalars."""
    assert probe(native, hyperparameters, torch.float64).takes_blocks
    monkeypatch.setattr(native_updater, "BLOCK_BYTES", block_bytes)
    ids = torch.tensor([5, -7, 11, 2**40])
    ours = Embedding(DIM, name="table", dtype=torch.float64, **place.table)
    theirs = torch.nn.Parameter(ours(ids).detach().clone())
    our_optimizer = Optimizer(ours, native, update=update, **hyperparameters)
    their_optimizer = native([theirs], **hyperparameters)
    generator = torch.Generator().manual_seed(3)
    for _ in range(8):
        drawn = torch.randn(4, DIM, dtype=torch.float64, generator=generator, device="cpu")
        scale = drawn.to(torch.get_default_device())
        for rows, optimizer in ((ours(ids), our_optimizer), (theirs, their_optimizer)):
            optimizer.zero_grad()
            (rows * scale + rows**2).sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours(ids), theirs, rtol=0, atol=1e-12)


class CountsByItself(torch.optim.Optimizer):
    """Stores its step number outside of its state."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})
        self.num_steps = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.num_steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"] / self.num_steps)


class CountsInItsGroup(torch.optim.Optimizer):
    """Stores its step number in its hyper-parameters."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "num_steps": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["num_steps"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"] / group["num_steps"])


@pytest.mark.parametrize(
    ("native", "takes_blocks"), [(CountsByItself, False), (CountsInItsGroup, True)]
)
def test_optimizer_that_counts_steps_counts_each_once(
    place: Any,
    native: type[torch.optim.Optimizer],
    takes_blocks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert probe(native, {}, torch.float64).takes_blocks is takes_blocks
    monkeypatch.setattr(native_updater, "BLOCK_BYTES", 1)
    small, large = torch.tensor([1]), torch.tensor([1, 2, 3, 4, 5])
    tables = [Embedding(DIM, name=name, dtype=torch.float64, **place.table) for name in ("a", "b")]
    before = [
        table(ids).detach().clone() for table, ids in zip(tables, (small, large), strict=True)
    ]
    optimizer = Optimizer(tables, native, lr=1.0)
    for _ in range(2):
        (tables[0](small).sum() + tables[1](large).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    for table, ids, start in zip(tables, (small, large), before, strict=True):
        torch.testing.assert_close(table(ids), start - 1.5, rtol=0, atol=1e-12)


@SOME_CHOICES
def test_each_row_keeps_its_state_while_others_change(
    place: Any, native: type[torch.optim.Optimizer], hyperparameters: dict[str, Any]
) -> None:
    """Alternates between two halves, compared to two parameters whose optimizers share the scalars."""
    halves = [torch.tensor([1, 2]), torch.tensor([3, 4])]
    ours = Embedding(DIM, name="table", dtype=torch.float64, **place.table)
    theirs = [torch.nn.Parameter(ours(half).detach().clone()) for half in halves]
    our_optimizer = Optimizer(ours, native, **hyperparameters)
    layout = probe(native, hyperparameters, torch.float64)
    optimizers = [native([parameter], **hyperparameters) for parameter in theirs]
    for parameter, optimizer in zip(theirs, optimizers, strict=True):
        optimizer.state[parameter] = layout.fresh_scalars() | {
            name: torch.full_like(parameter, value).detach()
            for name, value in zip(layout.names, layout.initial, strict=True)
        }
    for turn in range(10):
        half, parameter, optimizer = (each[turn % 2] for each in (halves, theirs, optimizers))
        for rows, stepped in ((ours(half), our_optimizer), (parameter, optimizer)):
            stepped.zero_grad()
            ((rows - 1) ** 2).sum().backward()
            stepped.step()
        other = optimizers[1 - turn % 2].state[theirs[1 - turn % 2]]
        for name, value in optimizer.state[parameter].items():
            if name not in layout.names:
                other[name] = value.clone() if isinstance(value, Tensor) else value
    for half, parameter in zip(halves, theirs, strict=True):
        torch.testing.assert_close(ours(half), parameter, rtol=0, atol=1e-12)


def test_state_follows_the_embedding_in_the_storage(place: Any) -> None:
    ours = Embedding(DIM, name="table", **place.table)
    optimizer = Optimizer(ours, torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.5)
    (ours(torch.tensor([9])) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    storage = optimizer.container.storage("table")
    assert storage.table.state_width == DIM
    rows = storage.find(np.array([9])).rows
    np.testing.assert_allclose(rows[0, DIM:], [1.5, 4.5, 9.5])


@pytest.mark.parametrize(
    ("native", "hyperparameters"),
    [
        (Normalised, {}),
        (torch.optim.LBFGS, {}),
        (torch.optim.Adafactor, {}),
        (OtherSparseAdam, {}),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_optimizers_that_do_not_work_by_row_are_rejected_by_name(
    native: type[torch.optim.Optimizer], hyperparameters: dict[str, Any]
) -> None:
    ours = Embedding(DIM, storage="memory")
    with pytest.raises(UnsupportedError, match=f"optimizer {native.__name__} cannot"):
        Optimizer(ours, native, **hyperparameters)


def test_unknown_hyperparameters_are_rejected() -> None:
    ours = Embedding(DIM, storage="memory")
    with pytest.raises(InvalidArgumentError, match="Adam does not accept"):
        Optimizer(ours, torch.optim.Adam, learning_rate=0.1)


def test_probing_does_not_change_the_random_state() -> None:
    before = torch.random.get_rng_state()
    probe(torch.optim.Adam, {"lr": 0.1}, torch.float32)
    assert torch.equal(before, torch.random.get_rng_state())
