"""The memory limit of a step: the bytes that it must move, at the bandwidth of random rows.

No step can be faster: it reads the distinct rows of the batch and writes the pooled embeddings; then it
reads the gradients, and reads and writes each distinct row with its state. The bandwidth is measured in
the same run, by pooling random rows of a dense array of the same size with prefetching, on the same
threads, without hashing and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from statistics import fmean

import numpy as np
import numpy.typing as npt

from benchmarks.inputs import Batch
from sparring import _native

__all__ = ["bytes_of_forward", "bytes_of_step", "pool_dense", "seconds_at"]


def pool_dense(dense: npt.NDArray[np.float32], inputs: Sequence[Batch]) -> Callable[[], object]:
    """Pools rows of a dense array by index, as fast as this machine can."""
    turns = cycle(inputs)
    out = np.zeros((len(inputs[0].offsets) - 1, dense.shape[1]), np.float32)

    def run() -> object:
        batch = next(turns)
        return _native.pool(dense, batch.ids, batch.offsets, "sum", None, out)

    return run


def bytes_of_forward(inputs: Sequence[Batch], dim: int) -> float:
    """Returns the bytes of the distinct rows read and the embeddings written."""
    return fmean(
        4.0 * dim * (len(np.unique(batch.ids)) + len(batch.offsets) - 1) for batch in inputs
    )


def bytes_of_step(inputs: Sequence[Batch], dim: int, state_width: int) -> float:
    """Returns the bytes of the forward pass, the gradients, and reading and writing rows with state."""
    return bytes_of_forward(inputs, dim) + fmean(
        4.0 * dim * (len(batch.offsets) - 1)
        + 2 * 4.0 * (dim + state_width) * len(np.unique(batch.ids))
        for batch in inputs
    )


def seconds_at(num_bytes: float, pool_seconds: float, inputs: Sequence[Batch], dim: int) -> float:
    """Returns the seconds for `num_bytes` at the bandwidth that `pool_dense` reached."""
    pooled = 4.0 * dim * (len(inputs[0].ids) + len(inputs[0].offsets) - 1)
    return num_bytes * pool_seconds / pooled
