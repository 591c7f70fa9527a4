"""Forward passes of a torch module that pools one table's bags, given ids and offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from benchmarks.inputs import Batch

__all__ = ["ModuleBags"]


class ModuleBags:
    """Base class for peers that are such modules. Their steps differ."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def pooled(self, batch: Batch) -> Tensor:
        """Returns pooled embeddings, without gradients."""
        with torch.no_grad():
            pooled: Tensor = self.module(*_tensors(batch))
            return pooled

    def forward(self, inputs: Sequence[Batch]) -> Callable[[], object]:
        """Runs a pooled forward pass. Each call uses the next batch."""
        turns = self.turns(inputs)

        def run() -> object:
            with torch.no_grad():
                return self.module(*next(turns))

        return run

    def turns(self, inputs: Sequence[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields ids and offsets of the batches, cyclically."""
        return cycle([_tensors(batch) for batch in inputs])


def _tensors(batch: Batch) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(batch.ids), torch.from_numpy(batch.offsets)
