"""Training pooled embeddings on a GPU beside PyTorch's own: forward, backward, optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from benchmarks.gpu.timing import GpuFigure, copy_bandwidth, seconds_of
from sparring_torch import EmbeddingBag, Optimizer

__all__ = ["measure_training"]

_DIM, _POOLED, _BAGS, _NUM_ROWS = 128, 4, 65_536, 2_000_000
_NUM_BATCHES = 8


def measure_training() -> Iterator[GpuFigure]:
    """Pooled 4, dim 128, rowwise Adagrad, against `nn.EmbeddingBag(sparse=True)` with Adagrad."""
    batches = [
        torch.randint(0, _NUM_ROWS, (_BAGS, _POOLED), device="cuda") for _ in range(_NUM_BATCHES)
    ]
    table = EmbeddingBag(_DIM, name="rows", mode="sum", device="cuda")
    fused = Optimizer(table, "rowwise_adagrad", lr=0.01)
    ours = seconds_of(_step(table, fused, batches))
    dense = torch.nn.EmbeddingBag(_NUM_ROWS, _DIM, mode="sum", sparse=True, device="cuda")
    adagrad = torch.optim.Adagrad(dense.parameters(), lr=0.01)
    theirs = seconds_of(_step(dense, adagrad, batches))
    # Rows of distinct ids are read twice and written once, with a gradient each; bags and their
    # gradients are written and read.
    num_rows = sum(len(torch.unique(batch)) for batch in batches) / _NUM_BATCHES
    least_bytes = (num_rows * 4 + _BAGS * 2) * _DIM * 4
    bound = least_bytes / copy_bandwidth()
    yield GpuFigure("forward, backward and update, pooled 4, dim 128", 1000 * ours, "ms", "")
    yield GpuFigure("the same against nn.EmbeddingBag + Adagrad", theirs / ours, "x", "")
    yield GpuFigure("the same against the bytes it must move", ours / bound, "x", "")


def _step(
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Optimizer,
    batches: list[torch.Tensor],
) -> Callable[[int], None]:
    def step(turn: int) -> None:
        module(batches[turn % _NUM_BATCHES]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
