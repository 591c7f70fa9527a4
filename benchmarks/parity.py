"""Differences of rows from the rows of a dense `torch.nn.EmbeddingBag` after 200 random steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.measuring import Figure
from benchmarks.scale import Scale
from sparring.contracts import TableConfig
from sparring.kernels.functions import initial_rows
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer

__all__ = ["measure"]

DIM, STEPS, BAGS, NUM_KEYS = 16, 200, 64, 500
BARS = {torch.float64: 1e-12, torch.float32: 1e-6}

# SparseAdam adds eps before the bias correction and Adam after it; with a tiny eps they agree.
METHODS: dict[str, tuple[type[torch.optim.Optimizer], Any, dict[str, Any], bool]] = {
    "SGD": (torch.optim.SGD, torch.optim.SGD, {"lr": 0.1}, False),
    "Adagrad": (torch.optim.Adagrad, torch.optim.Adagrad, {"lr": 0.1}, False),
    "Adam, as SparseAdam": (
        torch.optim.Adam,
        torch.optim.SparseAdam,
        {"lr": 0.01, "eps": 1e-30},
        True,
    ),
}


def measure(_scale: Scale) -> list[Figure]:
    """Measures the maximum absolute difference of all elements, per method and dtype."""
    return [_compare(method, dtype) for dtype in BARS for method in METHODS]


def _compare(method: str, dtype: torch.dtype) -> Figure:
    ours_class, theirs_class, hyperparameters, is_sparse = METHODS[method]
    generator = np.random.default_rng(0)
    keys = generator.integers(-(2**63), 2**63 - 1, NUM_KEYS)
    table = TableConfig("table", DIM, str(dtype).removeprefix("torch."))
    ours = EmbeddingBag(DIM, mode="sum", name="table", dtype=dtype)
    dense = torch.nn.EmbeddingBag(
        NUM_KEYS,
        DIM,
        mode="sum",
        sparse=is_sparse,
        _weight=torch.from_numpy(initial_rows(keys, table)),
    )
    our_optimizer = Optimizer(ours, ours_class, **hyperparameters)
    their_optimizer = theirs_class(dense.parameters(), **hyperparameters)
    target = torch.from_numpy(generator.normal(size=(BAGS, DIM))).to(dtype)
    for _ in range(STEPS):
        our_optimizer.zero_grad()
        their_optimizer.zero_grad()
        for _ in range(2):  # micro-batches
            lengths = generator.integers(0, 6, BAGS)
            offsets = torch.from_numpy(np.cumsum(lengths) - lengths)
            places = torch.from_numpy(generator.zipf(1.3, int(lengths.sum())) % NUM_KEYS)
            ids = torch.from_numpy(keys)[places]
            for module, index in ((ours, ids), (dense, places)):
                (((module(index, offsets) - target) ** 2).sum() / BAGS).backward()
        our_optimizer.step()
        their_optimizer.step()
    rows = ours.eval()(torch.from_numpy(keys).reshape(-1, 1))
    worst = float((rows - dense.weight.detach()).abs().max())
    return Figure(
        what=f"parity after {STEPS} steps, {method}, {table.dtype}",
        value=f"{worst:.1e}",
        bar=f"<= {BARS[dtype]:.0e}",
        is_reached=worst <= BARS[dtype],
        detail="maximum difference from torch.nn.EmbeddingBag",
    )
