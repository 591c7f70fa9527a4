"""Storages that users open: which optimizer's state their rows have, and when they are rejected."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparring import Uniform, open_storage
from sparring.contracts import Storage, TableConfig
from sparring.errors import InvalidArgumentError
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer

DIM = 6


def bag(storage: Any = "hkv", **options: Any) -> EmbeddingBag:
    return EmbeddingBag(DIM, mode="sum", name="t", dtype=torch.float64, storage=storage, **options)


def given(method: str = "adam", width: int = 2 * DIM) -> Storage:
    table = TableConfig("t", DIM, "float64", Uniform(-0.05, 0.05))
    return open_storage("memory", table.with_state(width, method))


def test_a_storage_opened_for_a_method_supports_only_that_method() -> None:
    for storage in (given(), given(method="")):
        made = bag(storage)
        made(torch.tensor([[1]])).sum()
        optimizer = Optimizer(made, "adam", lr=0.1)
        made(torch.tensor([[1]])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        rows = storage.find([1]).rows.tobytes()
        with pytest.raises(
            InvalidArgumentError, match=r"of adam, but lamb needs 12 .*with_state\(12"
        ):
            Optimizer(made, "lamb")
        made(torch.tensor([[2]])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert storage.find([1]).rows.tobytes() == rows
    with pytest.raises(InvalidArgumentError, match="of adam, but lamb needs 12 elements"):
        Optimizer(bag(given()), "lamb")
    with pytest.raises(InvalidArgumentError, match="12 elements of state, but update method 'sgd'"):
        Optimizer(bag(given()), "sgd")


def test_a_storage_for_another_table_is_rejected_with_the_difference() -> None:
    storage = given()
    for module in (
        EmbeddingBag(DIM, name="t", dtype=torch.float32, storage=storage),
        EmbeddingBag(DIM + 1, name="t", dtype=torch.float64, storage=storage),
    ):
        with pytest.raises(
            InvalidArgumentError, match=r"(dim 6, not 7|dtype 'float64', not).*Open"
        ):
            Optimizer(module, "adam")


@pytest.mark.parametrize("other", ["lamb", "sgd", torch.optim.RMSprop])
def test_an_optimizer_rejected_by_one_table_changes_none(other: Any) -> None:
    first, second = (EmbeddingBag(DIM, name=name, mode="sum") for name in ("first", "second"))
    optimizer = Optimizer([first, second], "adam", lr=0.1)
    ids = torch.tensor([[1]])
    second(ids).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(InvalidArgumentError, match=r"'second'.*of adam"):
        Optimizer([first, second], other, lr=0.1)
    tables = optimizer.container.tables
    assert {name: (each.state_width, each.state_method) for name, each in tables.items()} == {
        "first": (2 * DIM, "adam"),
        "second": (2 * DIM, "adam"),
    }
    with pytest.raises(InvalidArgumentError, match="no hyper-parameter"):
        Optimizer([first], "lamb", tables={"first": {"momentum": 0.5}})
    with pytest.raises(InvalidArgumentError, match="no hyper-parameter"):
        Optimizer([first, second], "lamb", tables={"second": {"momentum": 0.5}})
    assert tables["first"] == optimizer.container.tables["first"]
    (first(ids) + second(ids)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert optimizer.state_dict()["state"] == {"first": {"step": 1}, "second": {"step": 2}}
