"""Two tiers, a tenth of the rows on the GPU, beside a table whose rows lie in pinned host memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.timing import GpuFigure, seconds_of
from sparring_torch import EmbeddingBag, Optimizer

__all__ = ["measure_tiers"]

_DIM, _NUM_ROWS, _NUM_IDS, _EXPONENT = 64, 2_000_000, 1 << 17, 1.05
_NUM_BATCHES = 8
_FILLING = 1 << 17


def measure_tiers() -> Iterator[GpuFigure]:
    """Training on Zipf 1.05: lookup, backward and a fused step, once the tiers have settled."""
    batches = _batches()
    tiers = [
        {"backend": "hkv", "options": {"device": "cuda", "capacity": _NUM_ROWS // 10, "policy": "lru"}},
        {"backend": "hkv"},
    ]  # fmt: skip
    stacked = _trained({"backend": "tiered", "tiers": tiers}, batches)
    pinned = _trained({"backend": "hkv", "device": "cuda", "device_memory_bytes": 1}, batches)
    rate = _NUM_IDS / stacked / 1e6
    name = "two tiers, Zipf 1.05, 10 % of rows on the GPU"
    yield GpuFigure(name, rate, "M ids/s", "")
    yield GpuFigure("the same against all rows in pinned memory", pinned / stacked, "x", "")


def _batches() -> list[torch.Tensor]:
    generator = np.random.default_rng(1)
    shares = np.arange(1, _NUM_ROWS + 1, dtype=np.float64) ** -_EXPONENT
    bounds = np.cumsum(shares / shares.sum())
    drawn = [np.searchsorted(bounds, generator.random(_NUM_IDS)) for _ in range(_NUM_BATCHES)]
    return [torch.from_numpy(each.astype(np.int64)).cuda()[:, None] for each in drawn]


def _trained(storage: dict[str, Any], batches: list[torch.Tensor]) -> float:
    """Seconds for a step, of a table that holds all rows."""
    table = EmbeddingBag(_DIM, name="rows", mode="sum", storage=storage)
    optimizer = Optimizer(table, "rowwise_adagrad", lr=0.01)
    ids = torch.arange(_NUM_ROWS, device="cuda")[:, None]

    def step(batch: torch.Tensor) -> None:
        table(batch).sum().backward()
        optimizer.step()

    for part in torch.split(ids, _FILLING):
        step(part)
    return seconds_of(lambda turn: step(batches[turn % _NUM_BATCHES]))
