"""The same model with tables and with `torch.nn.Embedding`, for tests of averages and copies."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from sparring_torch import Embedding, Optimizer

NUM_IDS = 30
NORMAL = {"kind": "normal", "mean": 0, "stddev": 1}


class Pair:
    """The same model with tables and with `torch.nn.Embedding`, trained by the same batches."""

    def __init__(
        self, kind: Any = torch.optim.SGD, lr: float = 0.5, update: str = "auto", **options: Any
    ) -> None:
        options = {"initializer": NORMAL, **options}
        torch.manual_seed(0)
        ours = Embedding(3, name="items", **options)
        theirs = nn.Embedding(NUM_IDS, 3, dtype=ours.agent.output_dtype)
        with torch.no_grad():
            theirs.weight.copy_(ours.read_embeddings(torch.arange(NUM_IDS)))
        top = nn.Linear(3, 1, dtype=theirs.weight.dtype)
        self.model = nn.Sequential(ours, top, nn.BatchNorm1d(1, dtype=theirs.weight.dtype))
        self.dense = nn.Sequential(theirs, copy.deepcopy(top), copy.deepcopy(self.model[2]))
        self.optimizers = [
            Optimizer(self.model, kind, lr=lr, update=update),
            torch.optim.SGD(self.model[1].parameters(), lr=0.1),
            kind(self.dense[0].parameters(), lr=lr),
            torch.optim.SGD(self.dense[1].parameters(), lr=0.1),
        ]
        self._random = torch.Generator().manual_seed(5)

    def step(self) -> None:
        """Trains 3 of the ids, so that most rows change rarely, and some never."""
        ids = torch.randint(0, NUM_IDS - 5, (3,), generator=self._random)
        for each in self.optimizers:
            each.zero_grad()
        for model in (self.model, self.dense):
            (model(ids) * torch.tensor([[1.0], [-2.0], [0.5]])).sum().backward()
        for each in self.optimizers:
            each.step()


def rows(model: nn.Module) -> Tensor:
    read: Tensor = model[0].read_embeddings(torch.arange(NUM_IDS))  # type: ignore[index]
    return read
