"""What the memory allows: the bytes that a step must move, at the speed of random rows.

No step can be faster than this, whatever it does: it reads the distinct rows of the batch and writes
the pooled embeddings; then it reads the gradients, and reads and writes each distinct row with its
state. The speed is measured in the same run, by pooling random rows of a dense array of the same
size with prefetches, on the same threads: no hashing, no keys.
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
    """Pools rows by their place in a dense array, as fast as this machine can."""
    turns = cycle(inputs)
    out = np.zeros((len(inputs[0].offsets) - 1, dense.shape[1]), np.float32)

    def run() -> object:
        batch = next(turns)
        return _native.pool(dense, batch.ids, batch.offsets, "sum", None, out)

    return run


def bytes_of_forward(inputs: Sequence[Batch], dim: int) -> float:
    """Distinct rows read, embeddings written."""
    return fmean(
        4.0 * dim * (len(np.unique(batch.ids)) + len(batch.offsets) - 1) for batch in inputs
    )


def bytes_of_step(inputs: Sequence[Batch], dim: int, state_width: int) -> float:
    """The forward pass, gradients read, distinct rows with their state read and written."""
    return bytes_of_forward(inputs, dim) + fmean(
        4.0 * dim * (len(batch.offsets) - 1)
        + 2 * 4.0 * (dim + state_width) * len(np.unique(batch.ids))
        for batch in inputs
    )


def seconds_at(num_bytes: float, pool_seconds: float, inputs: Sequence[Batch], dim: int) -> float:
    """How long `num_bytes` take at the speed at which `pool_dense` read and wrote its own."""
    pooled = 4.0 * dim * (len(inputs[0].ids) + len(inputs[0].offsets) - 1)
    return num_bytes * pool_seconds / pooled
