"""Every optimizer class of torch, with each argument that changes numbers, updates rows as it updates a
parameter that has gradients in the same steps, or is rejected by name."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.optim import Optimizer as Native

from sparring.errors import UnsupportedError
from sparring_torch import Embedding, Optimizer

IDS = torch.arange(5)

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "SGD": [
        {},
        {"dampening": 0.5},  # has no effect without momentum
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "maximize": True, "weight_decay": 0.1},
    ],
    "Adam": [
        {},
        {"amsgrad": True, "maximize": True, "weight_decay": 0.1},
        {"decoupled_weight_decay": True, "weight_decay": 0.5},
        {"betas": (0.5, 0.7), "eps": 0.1},
    ],
    "AdamW": [{}, {"amsgrad": True, "maximize": True, "weight_decay": 0.5}],
    "SparseAdam": [{}, {"maximize": True}],
    "Adagrad": [
        {},
        {"lr_decay": 0.1, "initial_accumulator_value": 0.5},
        {"weight_decay": 0.1, "maximize": True},
    ],
    "RMSprop": [
        {},
        {"centered": True},
        {"momentum": 0.9},
        {"centered": True, "momentum": 0.9, "weight_decay": 0.1, "maximize": True},
    ],
    "Adadelta": [{}, {"rho": 0.5, "weight_decay": 0.1, "maximize": True}],
    "Adamax": [{}, {"weight_decay": 0.1, "maximize": True}],
    "NAdam": [
        {},
        {"momentum_decay": 0.1, "weight_decay": 0.1, "maximize": True},
        {"decoupled_weight_decay": True, "weight_decay": 0.1},
    ],
    "RAdam": [
        {},
        {"weight_decay": 0.1, "maximize": True},
        {"decoupled_weight_decay": True, "weight_decay": 0.1},
    ],
    "ASGD": [{}, {"lambd": 0.1, "alpha": 0.5, "t0": 1}, {"weight_decay": 0.1, "maximize": True}],
    "Rprop": [{}, {"etas": (0.3, 1.5), "step_sizes": (1e-3, 0.2)}, {"maximize": True}],
}
REJECTED = {
    "LBFGS": "curvature",
    "Adafactor": "per row and per column",
    "Muon": "whole matrix",
}


def test_all_classes_of_torch_are_listed() -> None:
    found = {
        name
        for name, each in vars(torch.optim).items()
        if inspect.isclass(each) and issubclass(each, Native) and each is not Native
    }
    assert found <= SETTINGS.keys() | REJECTED.keys()


def compare(optimizer_class: Any, options: dict[str, Any], update: str, steps: int = 8) -> float:
    """Returns the maximum difference between rows and a parameter."""
    table = Embedding(4, name="items")
    optimizer = Optimizer(table, optimizer_class, update=update, **options)
    weight = torch.nn.Parameter(table.read_embeddings(IDS))
    reference = optimizer_class([weight], **options)
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for _ in range(steps):
        gradient = torch.randn(len(IDS), 4, generator=generator)
        (table(IDS) * gradient).sum().backward()
        weight.grad = gradient.clone()
        if optimizer_class is torch.optim.SparseAdam:
            weight.grad = torch.sparse_coo_tensor(
                IDS[None], gradient, (len(IDS), 4), check_invariants=False
            )
        for each in (optimizer, reference):
            each.step()
            each.zero_grad()
        difference = (table.read_embeddings(IDS) - weight).abs().max().item()
        worst = max(worst, difference)
    return worst


@pytest.mark.parametrize("update", ["auto", "shadow"])
@pytest.mark.parametrize("name", SETTINGS)
def test_rows_change_as_a_parameter(name: str, update: str) -> None:
    optimizer_class = getattr(torch.optim, name)
    known = inspect.signature(optimizer_class).parameters
    for options in SETTINGS[name]:
        if options.keys() <= known.keys():  # older releases of torch have fewer
            difference = compare(optimizer_class, {"lr": 0.1, **options}, update)
            assert difference <= (0 if update == "shadow" else 1e-5), options


@pytest.mark.parametrize("name", [name for name in REJECTED if hasattr(torch.optim, name)])
def test_classes_that_need_whole_matrices_are_rejected_by_name(name: str) -> None:
    optimizer_class = getattr(torch.optim, name)
    subclass = type("Own", (optimizer_class,), {})
    for each in (optimizer_class, subclass):
        with pytest.raises(UnsupportedError, match=f"{each.__name__} cannot.*{REJECTED[name]}"):
            Optimizer(Embedding(4, name="items"), each, lr=0.1)


# -- optimizers that start their state with the first gradient


class Average(Native):
    """Starts with the first gradient, or, for comparison, with zeros."""

    def __init__(self, params: Any, lr: float = 0.1, starts_with: str = "gradient") -> None:
        super().__init__(params, {"lr": lr, "starts_with": starts_with})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    continue
                state = self.state[each]
                if "mean" not in state:
                    gives = group["starts_with"] == "gradient"
                    state["mean"] = each.grad.clone() if gives else torch.zeros_like(each)
                state["mean"].lerp_(each.grad, 0.1)
                each.sub_(state["mean"], alpha=group["lr"])


def test_a_state_that_starts_with_the_first_gradient_is_rejected() -> None:
    with pytest.raises(UnsupportedError, match=r"Average cannot.*with the first gradient"):
        Optimizer(Embedding(4, name="items"), Average, lr=0.1)
    assert compare(Average, {"lr": 0.1, "starts_with": "zeros"}, "auto") == 0


def test_sgd_with_dampening_is_rejected_and_its_replacement_works() -> None:
    options = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}
    for update in ("auto", "shadow"):
        with pytest.raises(UnsupportedError, match="set dampening=0, and lr=lr"):
            Optimizer(Embedding(4, name="items"), torch.optim.SGD, update=update, **options)
    assert compare(torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}, "shadow") == 0


def test_dampening_that_is_set_later_is_rejected_before_rows_change() -> None:
    table = Embedding(4, name="items")
    optimizer = Optimizer(table, torch.optim.SGD, lr=0.1, momentum=0.9)
    before = table.read_embeddings(IDS)
    optimizer.param_groups[0]["dampening"] = 0.5
    table(IDS).sum().backward()
    with pytest.raises(UnsupportedError, match=r"found dampening=0\.5"):
        optimizer.step()
    assert torch.equal(table.read_embeddings(IDS), before)
