"""`torch.nn.EmbeddingBag(sparse=True)` with torch's own sparse optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from benchmarks.inputs import Batch

__all__ = ["TorchBags"]


class TorchBags:
    """One dense table of sum-pooled bags.

    Args:
        dense: ``(num_rows, dim)``, copied.
        optimizer: a class of torch that takes sparse gradients.
    """

    def __init__(
        self,
        dense: npt.NDArray[np.float32],
        optimizer: type[torch.optim.Optimizer],
        **hyperparameters: Any,
    ) -> None:
        self.module = nn.EmbeddingBag(
            *dense.shape,
            mode="sum",
            sparse=True,
            include_last_offset=True,
            _weight=torch.from_numpy(dense.copy()),
        )
        make: Any = optimizer
        self.optimizer = make(self.module.parameters(), **hyperparameters)

    def pooled(self, batch: Batch) -> Tensor:
        """Pooled embeddings, without a gradient."""
        with torch.no_grad():
            pooled: Tensor = self.module(*_tensors(batch))
            return pooled

    def forward(self, inputs: Sequence[Batch]) -> Callable[[], object]:
        """A pooled forward pass, each call on the next batch."""
        turns = cycle([_tensors(batch) for batch in inputs])

        def run() -> object:
            with torch.no_grad():
                return self.module(*next(turns))

        return run

    def step(self, inputs: Sequence[Batch], gradient: Tensor) -> Callable[[], object]:
        """Forward, backward with `gradient`, update; each call on the next batch."""
        turns = cycle([_tensors(batch) for batch in inputs])

        def run() -> object:
            self.module(*next(turns)).backward(gradient)
            self.optimizer.step()
            return self.optimizer.zero_grad()

        return run


def _tensors(batch: Batch) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(batch.ids), torch.from_numpy(batch.offsets)
