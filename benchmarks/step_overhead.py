"""What a step costs beyond its arithmetic: an empty model, 1,000 ids, native SGD."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.measuring import Figure, alternate
from benchmarks.scale import Scale
from sparring_torch.embedding_bag import EmbeddingBag
from sparring_torch.optimizer import Optimizer

__all__ = ["measure"]

NUM_IDS, DIM, BAR_MICROSECONDS = 1_000, 16, 250


def measure(_scale: Scale) -> list[Figure]:
    """Microseconds from forward to the end of `step`, beside a dense EmbeddingBag with sparse
    gradients on the same ids."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 100_000, (NUM_IDS,), generator=generator)
    offsets = torch.arange(NUM_IDS)
    ours = EmbeddingBag(DIM, mode="sum", name="overhead")
    dense = torch.nn.EmbeddingBag(100_000, DIM, mode="sum", sparse=True)
    seed = torch.full((NUM_IDS, DIM), 1e-3)

    def step_of(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        def step() -> None:
            optimizer.zero_grad()
            module(ids, offsets).backward(seed)
            optimizer.step()

        return step

    timings = alternate(
        {
            "ours": step_of(ours, Optimizer(ours, torch.optim.SGD, lr=0.1)),
            "theirs": step_of(dense, torch.optim.SGD(dense.parameters(), lr=0.1)),
        },
        rounds=500,
        warm_up=50,
    )
    micro = timings["ours"].median * 1e6
    theirs = timings["theirs"].median * 1e6
    return [
        Figure(
            what=f"one step of an empty model, {NUM_IDS:,} ids, dim {DIM}, SGD",
            value=f"{micro:.0f} µs",
            bar=f"< {BAR_MICROSECONDS} µs",
            is_reached=micro < BAR_MICROSECONDS,
            detail=f"nn.EmbeddingBag(sparse=True) with SGD in the same rounds: {theirs:.0f} µs",
        )
    ]
