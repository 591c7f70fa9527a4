"""`reset_state=True` keeps the state of rows if a table of the optimizer cannot be opened."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparring.errors import SparringError
from sparring_torch import Embedding, Optimizer

IDS = torch.tensor([3, -1])


def test_no_row_is_reset_if_a_table_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Embedding(2, name="old", initializer="zeros")
    optimizer = Optimizer(old, torch.optim.Adam, lr=0.1)
    old(IDS).sum().backward()
    optimizer.step()
    state = old.agent.container.storage("old").find([3]).rows.copy()
    new = Embedding(2, name="new", container=old.agent.container)
    tables = old.agent.container.state.tables
    open_storage = type(tables).open_storage

    def fail(self: Any, choice: Any, table: Any, *more: Any) -> Any:
        if table.name == "new":
            raise SparringError("no space left on device")
        return open_storage(self, choice, table, *more)

    monkeypatch.setattr(type(tables), "open_storage", fail)
    with pytest.raises(SparringError, match="no space left"):
        Optimizer([old, new], torch.optim.Adam, lr=0.1, reset_state=True)
    found = old.agent.container.storage("old").find([3]).rows
    assert found.shape == state.shape
    assert (found == state).all()
    assert state[0, 2:].any()
