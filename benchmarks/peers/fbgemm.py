"""FBGEMM's table batched embeddings on the CPU: dense rows by index, with a fused optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.inputs import Batch
from benchmarks.peers.module_bags import ModuleBags

__all__ = ["FbgemmBags", "why_unavailable"]


def why_unavailable() -> str | None:
    """Returns why FBGEMM cannot be measured, or None if it can."""
    try:
        import fbgemm_gpu.split_table_batched_embeddings_ops_training  # noqa: F401
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


class FbgemmBags(ModuleBags):
    """One table with sum-pooled bags and row-wise Adagrad in its backward pass."""

    def __init__(
        self, dense: npt.NDArray[np.float32], *, optimizer: str, lr: float, eps: float
    ) -> None:
        import fbgemm_gpu.split_table_batched_embeddings_ops_training as training
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation

        kinds = {"rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}
        module: Any = training.SplitTableBatchedEmbeddingBagsCodegen(
            [(*dense.shape, EmbeddingLocation.HOST, training.ComputeDevice.CPU)],
            optimizer=kinds[optimizer],
            learning_rate=lr,
            eps=eps,
        )
        module.split_embedding_weights()[0].copy_(torch.from_numpy(dense))
        super().__init__(module)

    def step(self, inputs: Sequence[Batch], gradient: Tensor) -> Callable[[], object]:
        """Runs forward, and backward with `gradient`, which updates. Each call uses the next batch."""
        turns = self.turns(inputs)

        def run() -> object:
            return self.module(*next(turns)).backward(gradient)

        return run
