"""Cost per id as a function of the size of the table, the dim and the batch size."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.inputs import batches
from benchmarks.measuring import Figure, alternate
from benchmarks.ours import OurBags
from benchmarks.scale import Scale
from benchmarks.threads import torch_threads

__all__ = ["measure"]

ROWS = (100_000, 1_000_000, 4_000_000)
FULL_ROWS = (*ROWS, 20_000_000)
DIMS = (8, 32, 64, 128, 256)
IDS = (100, 1_000, 10_000, 100_000, 1_000_000)
BAG_SIZE, BAR = 4, 2.5


@torch_threads(2)
def measure(scale: Scale) -> list[Figure]:
    """Measures nanoseconds per id for forward + backward + rowwise Adagrad, with uniform ids."""
    figures = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        figures += _rows(scale, threads)
    for dim in DIMS:
        figures.append(
            _figure(f"dim {dim}, 1,000,000 rows, 2 threads", _cost(scale, 1_000_000, dim, 262_144))
        )
    for num_ids in IDS:
        cost = _cost(scale, 1_000_000, 64, num_ids)
        figures.append(_figure(f"{num_ids:,} ids per batch, dim 64, 2 threads", cost))
    return figures


def _rows(scale: Scale, threads: int) -> Sequence[Figure]:
    from sparring.runtime import pool as execution

    execution.configure_pool(threads)
    sizes = FULL_ROWS if scale.is_full else ROWS
    costs = {num_rows: _cost(scale, num_rows, 64, 262_144) for num_rows in sizes}
    growth = costs[sizes[-1]] / costs[sizes[0]]
    return [
        *(
            _figure(f"{num_rows:,} rows, dim 64, {threads} threads", cost)
            for num_rows, cost in costs.items()
        ),
        Figure(
            what=f"cost of an id from {sizes[0]:,} to {sizes[-1]:,} rows, {threads} threads",
            value=f"grows {growth:.2f} x",
            bar=f"<= {BAR} x",
            is_reached=growth <= BAR,
            ratio=growth,
        ),
    ]


def _figure(what: str, nanoseconds: float) -> Figure:
    return Figure(what=f"  step, {what}", value=f"{nanoseconds:.1f} ns per id")


def _cost(scale: Scale, num_rows: int, dim: int, num_ids: int) -> float:
    num_rows, num_bags = scale.rows(num_rows), max(1, scale.rows(num_ids) // BAG_SIZE)
    random = np.random.default_rng(0)
    dense = random.standard_normal((num_rows, dim), np.float32)
    made = OurBags(dense, "rowwise_adagrad", lr=0.01)
    del dense
    inputs = batches(8, skew="uniform", num_rows=num_rows, num_bags=num_bags, bag_size=BAG_SIZE)
    gradient = torch.from_numpy(random.standard_normal((num_bags, dim), np.float32))
    timing = alternate({"ours": made.step(inputs, gradient)}, rounds=scale.rounds(15))["ours"]
    made.close()
    gc.collect()
    return timing.median / (num_bags * BAG_SIZE) * 1e9
