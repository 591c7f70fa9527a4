"""A new optimizer continues the state of rows together with its number of steps, or resets both."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sparring
from sparring.contracts import TableConfig
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch import Embedding, Optimizer
from sparring_torch.state import packed_rows

IDS = torch.tensor([3, -1, 8])
FIRST, MORE = 20, 4


def make_table() -> Embedding:
    return Embedding(2, name="items", initializer="zeros")


def gradient(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return 1 + 0.3 * torch.randn(len(IDS), 2, generator=generator)


def train(table: Embedding, optimizer: Any, steps: range) -> Tensor:
    """Returns the moves of the last steps."""
    before = table.read_embeddings(IDS)
    for step in steps:
        optimizer.zero_grad()
        (table(IDS) * gradient(step)).sum().backward()
        optimizer.step()
    return table.read_embeddings(IDS) - before


def torch_moves(optimizer_class: Any, *, is_fresh: bool) -> Tensor:
    """Returns the moves of an ordinary parameter in the steps after `FIRST`."""
    parameter = torch.nn.Parameter(torch.zeros(len(IDS), 2))
    optimizer = optimizer_class([parameter], lr=0.1)
    before = parameter.detach().clone()
    for step in range(FIRST + MORE):
        if step == FIRST:
            before = parameter.detach().clone()
            optimizer = optimizer_class([parameter], lr=0.1) if is_fresh else optimizer
        parameter.grad = gradient(step)
        optimizer.step()
    return parameter.detach() - before


MAKERS: dict[str, Callable[..., Any]] = {
    "Adam": lambda table, **more: Optimizer(table, torch.optim.Adam, lr=0.1, **more),
    "shadow": lambda table, **more: Optimizer(
        table, torch.optim.Adam, lr=0.1, update="shadow", **more
    ),
    "NAdam": lambda table, **more: Optimizer(table, torch.optim.NAdam, lr=0.1, **more),
    "adam": lambda table, **more: Optimizer(table, "adam", lr=0.1, **more),
}
REFERENCE = {"NAdam": torch.optim.NAdam}


def another_optimizer(table: Embedding, make: Any, folder: Path) -> tuple[Embedding, Any]:
    return table, make(table)


def loaded_before_optimizer(table: Embedding, make: Any, folder: Path) -> tuple[Embedding, Any]:
    torch.save(table.state_dict(), folder / "model.pt")
    other = make_table()
    other.load_state_dict(torch.load(folder / "model.pt"))
    return other, make(other)


def loaded_after_optimizer(table: Embedding, make: Any, folder: Path) -> tuple[Embedding, Any]:
    other = make_table()
    optimizer = make(other)
    other.load_state_dict(table.state_dict())
    return other, optimizer


def snapshot(table: Embedding, make: Any, folder: Path) -> tuple[Embedding, Any]:
    table.agent.container.save(str(folder / "snapshot"))
    other = make_table()
    optimizer = make(other)
    optimizer.container.load(str(folder / "snapshot"))
    return other, optimizer


def table_of_snapshot(table: Embedding, make: Any, folder: Path) -> tuple[Embedding, Any]:
    table.agent.container.save(str(folder / "snapshot"))
    other = make_table()
    optimizer = make(other)
    optimizer.container.load(str(folder / "snapshot"), tables=["items"])
    return other, optimizer


def deep_copy(table: Embedding, make: Any, folder: Path) -> tuple[Embedding, Any]:
    other = copy.deepcopy(table)
    return other, make(other)


WAYS = [
    another_optimizer,
    loaded_before_optimizer,
    loaded_after_optimizer,
    snapshot,
    table_of_snapshot,
    deep_copy,
]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_new_optimizer_continues_like_the_former_one(name: str, way: Any, tmp_path: Path) -> None:
    make, table = MAKERS[name], make_table()
    train(table, make(table), range(FIRST))
    table, optimizer = way(table, make, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moves = train(table, optimizer, range(FIRST, FIRST + MORE))
    expected = torch_moves(REFERENCE.get(name, torch.optim.Adam), is_fresh=False)
    torch.testing.assert_close(moves, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MAKERS)
def test_reset_state_starts_afresh(name: str) -> None:
    make, table = MAKERS[name], make_table()
    train(table, make(table), range(FIRST))
    optimizer = make(table, reset_state=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moves = train(table, optimizer, range(FIRST, FIRST + MORE))
    expected = torch_moves(REFERENCE.get(name, torch.optim.Adam), is_fresh=True)
    torch.testing.assert_close(moves, expected, rtol=1e-4, atol=1e-6)


def test_reset_state_allows_another_optimizer() -> None:
    table = make_table()
    train(table, Optimizer(table, torch.optim.Adam, lr=0.1), range(FIRST))
    with pytest.raises(InvalidArgumentError, match="state of Adam"):
        Optimizer(table, torch.optim.NAdam, lr=0.1)
    optimizer = Optimizer(table, torch.optim.NAdam, lr=0.1, reset_state=True)
    moves = train(table, optimizer, range(FIRST, FIRST + MORE))
    torch.testing.assert_close(moves, _nadam_after_adam(), rtol=1e-4, atol=1e-6)


def _nadam_after_adam() -> Tensor:
    parameter = torch.nn.Parameter(torch.zeros(len(IDS), 2))
    optimizer = torch.optim.NAdam([parameter], lr=0.1)
    for step in range(FIRST, FIRST + MORE):
        parameter.grad = gradient(step)
        optimizer.step()
    return parameter.detach()


def test_rows_of_an_older_file_have_an_unknown_number_of_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = make_table()
    former = MAKERS["Adam"](table)
    train(table, former, range(FIRST))
    with monkeypatch.context() as patch:
        patch.setattr(sparring.adapter.TableEntry, "save_scalars", lambda _: None)
        saved = table.state_dict()
    other = make_table()
    other.load_state_dict(saved)
    optimizer = MAKERS["Adam"](other)
    with pytest.warns(UserWarning, match=f"continues from the {FIRST} steps of the container"):
        train(other, optimizer, range(FIRST, FIRST + 1))
    for is_rows_first in (True, False):
        again = make_table()
        optimizer = MAKERS["Adam"](again)
        loads = [lambda to=again: to.load_state_dict(saved)]
        loads.append(lambda to=optimizer: to.load_state_dict(former.state_dict()))
        for load in loads if is_rows_first else reversed(loads):
            load()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(again, optimizer, range(FIRST, FIRST + 1))
        assert float(optimizer.state_dict()["state"]["items"]["step"]) == FIRST + 1


def test_embeddings_without_state_start_at_the_first_step() -> None:
    weights = torch.zeros(9, 2)
    table = Embedding.from_pretrained(weights, name="items", freeze=False)
    optimizer = Optimizer(table, torch.optim.Adam, lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ids = torch.tensor([1])
        optimizer.zero_grad()
        table(ids).sum().backward()
        optimizer.step()
    torch.testing.assert_close(table.read_embeddings(ids), torch.full((1, 2), -0.1))


def test_the_state_of_an_open_storage_is_not_reset() -> None:
    described = TableConfig("items", 2).with_state(4, "Adam")
    with sparring.open_storage("hkv", described) as storage:
        table = Embedding(2, name="items", storage=storage)
        train(table, Optimizer(table, torch.optim.Adam, lr=0.1), range(2))
        before = table.read_embeddings(IDS)
        with pytest.raises(UnsupportedError, match="passed in open"):
            Optimizer(table, torch.optim.Adam, lr=0.1, reset_state=True)
        assert torch.equal(table.read_embeddings(IDS), before)


def test_packed_rows_contain_the_steps() -> None:
    table = make_table()
    train(table, MAKERS["adam"](table), range(2))
    found = packed_rows.gather_table(table.agent.container, "items")
    assert found.described["scalars"] == {"method": "adam", "values": {"step": 2}}
