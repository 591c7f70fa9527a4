"""A warning reports an unknown number of steps if, and only if, it may change rows."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import sparring
from sparring_torch import Embedding, Optimizer

IDS = torch.tensor([3, -1, 8])


def make_table() -> Embedding:
    return Embedding(2, name="items", initializer="zeros")


def train(table: Embedding, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        table(IDS).sum().backward()
        optimizer.step()


@pytest.fixture
def no_saved_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves files like those of older releases."""
    monkeypatch.setattr(sparring.adapter.TableEntry, "save_scalars", lambda _: None)


def continued(kind: Any, trained: int, **hyper: Any) -> tuple[Embedding, Any]:
    table = make_table()
    train(table, Optimizer(table, kind, lr=0.1, **hyper), trained)
    other = make_table()
    optimizer = Optimizer(other, kind, lr=0.1, **hyper)
    other.load_state_dict(table.state_dict())
    return other, optimizer


UNUSED = ["adagrad", "rowwise_adagrad", "momentum", torch.optim.Adagrad, torch.optim.RMSprop]


@pytest.mark.usefixtures("no_saved_steps")
@pytest.mark.parametrize("kind", UNUSED)
def test_methods_without_a_use_for_the_steps_do_not_warn(kind: Any) -> None:
    table, optimizer = continued(kind, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(table, optimizer, 1)


@pytest.mark.usefixtures("no_saved_steps")
@pytest.mark.parametrize(
    ("kind", "hyper"),
    [
        ("adam", {}),
        ("adagrad", {"lr_decay": 0.1}),
        (torch.optim.Adam, {}),
        (torch.optim.Adagrad, {"lr_decay": 0.1}),
    ],
)
def test_methods_with_a_use_for_the_steps_warn(kind: Any, hyper: Any) -> None:
    table, optimizer = continued(kind, 2, **hyper)
    with pytest.warns(UserWarning, match="unknown number of steps"):
        train(table, optimizer, 1)


@pytest.mark.usefixtures("no_saved_steps")
@pytest.mark.parametrize("kind", ["adam", torch.optim.Adam])
def test_an_empty_table_starts_at_the_first_step_without_a_warning(kind: Any) -> None:
    table, optimizer = continued(kind, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(table, optimizer, 1)
    assert float(optimizer.state_dict()["state"]["items"]["step"]) == 1


@pytest.mark.parametrize("kind", ["adam", torch.optim.Adam])
def test_an_optimizer_does_not_keep_its_own_steps_for_other_rows(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = make_table()
    before = Optimizer(former, kind, lr=0.1)
    train(former, before, 5)
    with monkeypatch.context() as patch:
        patch.setattr(sparring.adapter.TableEntry, "save_scalars", lambda _: None)
        saved = former.state_dict()
    table = make_table()
    optimizer = Optimizer(table, kind, lr=0.1)
    train(table, optimizer, 2)
    table.load_state_dict(saved)
    with pytest.warns(UserWarning, match="unknown number of steps"):
        train(table, optimizer, 1)
    optimizer.load_state_dict(before.state_dict())
    table.load_state_dict(saved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(table, optimizer, 1)
    assert float(optimizer.state_dict()["state"]["items"]["step"]) == 6
    table.load_state_dict(saved)
    with pytest.warns(UserWarning, match="unknown number of steps"):
        train(table, optimizer, 1)
