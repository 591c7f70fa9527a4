"""This adapter keeps the promises of all adapters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sparring import StepContainer
from sparring.contracts import TableConfig
from sparring_testing.frameworks.framework_tests import FrameworkTests, MakeModel
from sparring_torch.modules.embedding import Embedding
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer

NATIVE: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "fused adagrad": "adagrad",
    "fused adam": "adam",
}


class Model:
    def __init__(
        self, table: TableConfig, container: StepContainer, optimizer: str, learning_rate: float
    ) -> None:
        self._options = {
            "name": table.name,
            "seed": table.seed,
            "initializer": table.initializer,
            "storage": "memory",
            "container": container,
            "shared": True,
        }
        self._dim = table.dim
        self._layer = Embedding(table.dim, **self._options)
        self._optimizer = Optimizer(self._layer, NATIVE[optimizer], lr=learning_rate)

    def look_up(self, ids: Any) -> Any:
        with torch.no_grad():
            return self._layer(torch.from_numpy(ids)).numpy()

    def pool(self, ids: Any, lengths: Any, mode: str) -> Any:
        bag = EmbeddingBag(self._dim, mode=mode, **self._options)
        starts = torch.from_numpy(np.cumsum(lengths) - lengths)
        with torch.no_grad():
            return bag(torch.from_numpy(ids), starts).numpy()

    def weights_gradient(self, ids: Any, lengths: Any, weights: Any) -> Any:
        bag = EmbeddingBag(self._dim, mode="sum", **self._options)
        starts = torch.from_numpy(np.cumsum(lengths) - lengths)
        given = torch.from_numpy(weights).requires_grad_()
        pooled = bag(torch.from_numpy(ids), starts, per_sample_weights=given)
        (0.5 * pooled.square().sum()).backward()
        return given.grad.numpy()

    def step(self, ids: Any, targets: Any) -> None:
        self.step_in_parts([(ids, targets)])

    def step_in_parts(self, parts: Any) -> None:
        for ids, targets in parts:
            difference = self._layer(torch.from_numpy(ids)) - torch.from_numpy(targets)
            (0.5 * difference.square().sum()).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


class TestTorch(FrameworkTests):
    @pytest.fixture
    def make_model(self) -> MakeModel:
        return Model
