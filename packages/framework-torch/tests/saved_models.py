"""A model with three modules over two tables, for tests of saving and copying."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sparring import StepContainer
from sparring_testing.processes.table_steps import read_rows
from sparring_torch import CombinedOptimizer, Embedding, EmbeddingBag, Optimizer

Natives = dict[str, tuple[Any, dict[str, Any]]]
NATIVES: Natives = {
    "Adam": (torch.optim.Adam, {"lr": 0.05}),
    "rowwise_adagrad": ("rowwise_adagrad", {"lr": 0.1}),
    "shadow": (torch.optim.Adagrad, {"lr": 0.1, "update": "shadow"}),
}


class Model(nn.Module):
    """Three modules, two of which share a table after an optimizer has joined them."""

    def __init__(self, container: StepContainer | None = None, **options: Any) -> None:
        super().__init__()
        if "device" not in options:
            options = {"storage": "memory"} | options
        options["container"] = container
        self.users = Embedding(4, name="users", dtype=torch.bfloat16, **options)
        self.items = Embedding(3, name="items", **options)
        self.seen = EmbeddingBag(3, name="items", mode="sum", shared=True, **options)
        torch.manual_seed(1)
        self.top = nn.Linear(4 + 3 + 3, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        parts = [self.users(ids), self.items(ids + 1), self.seen(torch.stack([ids, -ids], 1))]
        out: torch.Tensor = self.top(torch.cat(parts, 1))
        return out.square().mean()


def optimizer_of(model: nn.Module, native: str = "Adam") -> CombinedOptimizer:
    method, options = NATIVES[native]
    dense = torch.optim.Adam(model.top.parameters(), lr=0.01)  # type: ignore[union-attr]
    return CombinedOptimizer([Optimizer(model, method, **options), dense])


def train(model: nn.Module, optimizer: torch.optim.Optimizer, begin: int, end: int) -> list[float]:
    losses = []
    for step in range(begin, end):
        optimizer.zero_grad()
        loss = model(torch.arange(step, step + 5) * 3)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def rows_of(model: Model) -> dict[str, dict[int, bytes]]:
    """Returns all rows with their state."""
    modules = {"users": model.users, "items": model.items}
    return {name: read_rows(each.agent.container, name) for name, each in modules.items()}
