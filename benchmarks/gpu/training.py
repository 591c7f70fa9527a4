"""Training of pooled embeddings on a GPU, compared with PyTorch: forward, backward, optimizer."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.gpu.machine import Bar, Machine
from benchmarks.measuring import Figure
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer

__all__ = ["measure"]

_DIM, _POOLED, _BAGS, _NUM_ROWS = 128, 4, 65_536, 2_000_000
_NUM_BATCHES = 8


def measure(machine: Machine) -> list[Figure]:
    """Pooling of 4, dim 128, rowwise Adagrad; reference: `nn.EmbeddingBag(sparse=True)` with Adagrad."""
    num_bags, num_rows = machine.sized(_BAGS), machine.sized(_NUM_ROWS)
    batches = [
        torch.randint(0, num_rows, (num_bags, _POOLED), device=machine.where)
        for _ in range(_NUM_BATCHES)
    ]
    table = EmbeddingBag(_DIM, name="rows", mode="sum", device=machine.device)
    fused = Optimizer(table, "rowwise_adagrad", lr=0.01)
    our_step = _step(table, fused, batches)
    # Trains every batch once before, because growth of the table is not measured here.
    for turn in range(_NUM_BATCHES):
        our_step(turn)
    ours = machine.seconds_of(our_step)
    explained = machine.explained(ours, machine.stages_of(our_step))
    dense = torch.nn.EmbeddingBag(num_rows, _DIM, mode="sum", sparse=True, device=machine.where)
    adagrad = torch.optim.Adagrad(dense.parameters(), lr=0.01)
    theirs = machine.seconds_of(_step(dense, adagrad, batches))
    # Rows of distinct ids are read twice and written once, and each has a gradient; bags and their
    # gradients are written and read.
    num_read = sum(len(torch.unique(batch)) for batch in batches) / _NUM_BATCHES
    least_bytes = (num_read * 4 + num_bags * 2) * _DIM * 4
    bound = least_bytes / machine.copy_bandwidth
    what = "forward, backward and update, pooled 4, dim 128"
    return [
        machine.figure(what, 1000 * ours, "ms", None, explained),
        machine.figure(
            "the same / nn.EmbeddingBag + Adagrad", theirs / ours, "x", Bar(at_least=5.0),
            "sparse=True, on the GPU",
        ),
        machine.figure(
            "the same / the bytes it must move", ours / bound, "x", Bar(at_most=2.5),
            f"{least_bytes / 1e6:.0f} MB at the speed of the copy",
        ),
    ]  # fmt: skip


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
