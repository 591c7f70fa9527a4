"""Classes that configurations of tests name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sparring import Uniform
from sparring.contracts import TableConfig

__all__ = ["Absolute", "Constant", "HalfAdam", "Mean", "Scaled", "ScaledError", "not_a_class"]


class HalfAdam(torch.optim.Adam):
    """Adam with half the rate."""

    def __init__(self, params: Any, lr: float = 0.001) -> None:
        super().__init__(params, lr=lr / 2)


class ScaledError(nn.Module):
    """A squared error, some times."""

    def __init__(self, times: float = 1.0) -> None:
        super().__init__()
        self.times = times

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.times * (outputs - labels).square()


class Mean(nn.Module):
    """A loss that returns one number."""

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs - labels).mean()


class Absolute:
    """Mean absolute difference, by its power."""

    higher_is_better = False

    def __init__(self, power: float = 1.0) -> None:
        self.power, self.total, self.count = power, 0.0, 0

    def update(self, predictions: Any, labels: Any) -> None:
        self.total += float((abs(predictions - labels) ** self.power).sum())
        self.count += len(labels)

    def metrics(self) -> dict[str, float]:
        return {"absolute": self.total / self.count}


class Scaled:
    """Initial values that depend on the dim of a table."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def initializer(self, table: TableConfig) -> Uniform:
        return Uniform(self.scale / table.dim, 2 * self.scale / table.dim)


class Constant:
    """An initializer that returns something else."""

    def initializer(self, table: TableConfig) -> str:
        return table.name


def not_a_class() -> None:
    """A function."""
