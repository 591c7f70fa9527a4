"""Key operations on a GPU beside those of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.timing import GpuFigure, seconds_of
from sparring import make_plugin_manager
from sparring.kernel_set import ArraySource

__all__ = ["measure_dedup"]

_NUM_IDS = 1 << 20


def measure_dedup() -> Iterator[GpuFigure]:
    """A million ids, Zipf 1.05, against `torch.unique` with its inverse."""
    drawn = np.random.default_rng(1).zipf(1.05, _NUM_IDS).astype(np.int64)
    ids = torch.from_numpy(drawn).cuda()

    def empty(shape: tuple[int, ...], dtype: str) -> Any:
        return torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")

    arrays = ArraySource(empty=empty, stream=lambda: int(torch.cuda.current_stream().cuda_stream))
    kernels = make_plugin_manager().kernels("cuda").factory(arrays)
    ours = seconds_of(lambda _: kernels.dedup(ids))
    theirs = seconds_of(lambda _: torch.unique(ids, return_inverse=True))
    yield GpuFigure("dedup of 1 M ids, Zipf 1.05", _NUM_IDS / ours / 1e9, "G ids/s", "")
    yield GpuFigure("dedup against torch.unique", theirs / ours, "x", "")
