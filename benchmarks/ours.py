"""A pooled table of sparring, filled with rows, and a step to measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.inputs import Batch
from sparring.contracts import write_embeddings, write_state
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig
from sparring_torch.optim.optimizer import Optimizer

__all__ = ["OurBags", "jagged"]

_FILL_ROWS = 65_536


class OurBags:
    """One table with sum-pooled bags. Its keys are the row numbers of the dense tables of peers.

    Args:
        dense: ``(num_rows, dim)`` embeddings; row i becomes key i.
        optimizer: see `sparring_torch.Optimizer`.
        dtype: dtype of the embeddings.
    """

    def __init__(
        self,
        dense: npt.NDArray[np.float32],
        optimizer: Any,
        *,
        dtype: str = "float32",
        **hyperparameters: Any,
    ) -> None:
        dim = dense.shape[1]
        config = EmbeddingBagConfig(
            name="t", embedding_dim=dim, feature_names=["f"], data_type=dtype
        )
        self.module = EmbeddingBagCollection([config])
        self.optimizer = Optimizer(self.module, optimizer, **hyperparameters)
        container = self.optimizer.container
        storage = container.storage("t")
        table, state = container.entry("t").config, container.entry("t").initial_state
        assert state is not None
        for begin in range(0, len(dense), _FILL_ROWS):
            keys = np.arange(begin, min(begin + _FILL_ROWS, len(dense)))
            rows = np.zeros((len(keys), table.width), table.numpy_dtype)
            write_embeddings(table, rows, dense[keys])
            write_state(table, rows, state)
            storage.upsert(keys, rows)

    def pooled(self, batch: Batch) -> Tensor:
        """Returns pooled embeddings, without gradients."""
        with torch.no_grad():
            return self.module(jagged(batch)).values()

    def forward(self, inputs: Sequence[Batch]) -> Callable[[], object]:
        """Runs a pooled forward pass. Each call uses the next batch."""
        turns = cycle([jagged(batch) for batch in inputs])

        def run() -> object:
            with torch.no_grad():
                return self.module(next(turns)).values()

        return run

    def step(self, inputs: Sequence[Batch], gradient: Tensor) -> Callable[[], object]:
        """Runs forward, backward with `gradient`, and update. Each call uses the next batch."""
        turns = cycle([jagged(batch) for batch in inputs])

        def run() -> object:
            self.optimizer.zero_grad()
            self.module(next(turns)).values().backward(gradient)
            return self.optimizer.step()

        return run

    def close(self) -> None:
        self.optimizer.container.close()


def jagged(batch: Batch) -> KeyedJaggedTensor:
    """Returns the batch as one feature."""
    return KeyedJaggedTensor(
        keys=["f"],
        values=torch.from_numpy(batch.ids),
        offsets=torch.from_numpy(batch.offsets),
    )
