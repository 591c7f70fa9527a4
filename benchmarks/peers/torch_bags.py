"""`torch.nn.EmbeddingBag(sparse=True)` with torch's own sparse optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from benchmarks.inputs import Batch
from benchmarks.peers.module_bags import ModuleBags

__all__ = ["TorchBags"]


class TorchBags(ModuleBags):
    """One dense table with sum-pooled bags.

    Args:
        dense: ``(num_rows, dim)``, which is copied.
        optimizer: an optimizer class of torch that supports sparse gradients.
    """

    def __init__(
        self,
        dense: npt.NDArray[np.float32],
        optimizer: type[torch.optim.Optimizer],
        **hyperparameters: Any,
    ) -> None:
        super().__init__(
            nn.EmbeddingBag(
                *dense.shape,
                mode="sum",
                sparse=True,
                include_last_offset=True,
                _weight=torch.from_numpy(dense.copy()),
            )
        )
        make: Any = optimizer
        self.optimizer = make(self.module.parameters(), **hyperparameters)

    def step(self, inputs: Sequence[Batch], gradient: Tensor) -> Callable[[], object]:
        """Runs forward, backward with `gradient`, and update. Each call uses the next batch."""
        turns = self.turns(inputs)

        def run() -> object:
            self.module(*next(turns)).backward(gradient)
            self.optimizer.step()
            return self.optimizer.zero_grad()

        return run
