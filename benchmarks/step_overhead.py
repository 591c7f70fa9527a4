"""Overhead of a step beyond its arithmetic: an empty model, 1,000 ids, SGD."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks.measuring import Figure, alternate, ratios
from benchmarks.scale import Scale
from benchmarks.threads import torch_threads
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer

__all__ = ["measure"]

NUM_IDS, DIM, BAR_MICROSECONDS, FUSED_BAR = 1_000, 16, 250, 1.0


@torch_threads(1)
def measure(_scale: Scale) -> list[Figure]:
    """Measures microseconds from forward to the end of `step`; reference: a dense EmbeddingBag with
    sparse gradients on the same ids."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 100_000, (NUM_IDS,), generator=generator)
    offsets = torch.arange(NUM_IDS)
    dense = torch.nn.EmbeddingBag(100_000, DIM, mode="sum", sparse=True)
    seed = torch.full((NUM_IDS, DIM), 1e-3)

    def step_of(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        def step() -> None:
            optimizer.zero_grad()
            module(ids, offsets).backward(seed)
            optimizer.step()

        return step

    def ours(native: Any, name: str) -> Callable[[], None]:
        module = EmbeddingBag(DIM, mode="sum", name=name)
        return step_of(module, Optimizer(module, native, lr=0.1))

    theirs = step_of(dense, torch.optim.SGD(dense.parameters(), lr=0.1))
    # In pairs, because a contender that follows a similar one finds its code in the caches.
    native = alternate(
        {"ours": ours(torch.optim.SGD, "native"), "theirs": theirs}, rounds=500, warm_up=50
    )
    fused = alternate({"ours": ours("sgd", "fused"), "theirs": theirs}, rounds=500, warm_up=50)
    found = median(ratios(fused["ours"], fused["theirs"]))
    micro = native["ours"].median * 1e6
    what = f"one step of an empty model, {NUM_IDS:,} ids, dim {DIM}"
    return [
        Figure(
            what=f"{what}, torch.optim.SGD",
            value=f"{micro:.0f} µs",
            bar=f"< {BAR_MICROSECONDS} µs",
            is_reached=micro < BAR_MICROSECONDS,
            detail="nn.EmbeddingBag(sparse=True) with SGD in the same rounds: "
            f"{native['theirs'].median * 1e6:.0f} µs",
        ),
        Figure(
            what=f"{what}, update method sgd",
            value=f"{found:.2f} x the time of nn.EmbeddingBag(sparse=True) with SGD",
            bar=f"<= {FUSED_BAR:g} x",
            is_reached=found <= FUSED_BAR,
            detail=f"{fused['ours'].median * 1e6:.0f} against {fused['theirs'].median * 1e6:.0f} µs, "
            "one thread",
            ratio=1 / found,
        ),
    ]
