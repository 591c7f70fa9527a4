"""A collection of many tables, compared with one table with the same number of ids: cost per table."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from statistics import median

import numpy as np
import torch

from benchmarks.measuring import Figure, alternate, ratios
from benchmarks.scale import Scale
from benchmarks.threads import torch_threads
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig
from sparring_torch.optim.optimizer import Optimizer

__all__ = ["measure"]

DIM, NUM_TABLES, NUM_SAMPLES, NUM_ROWS, THREADS = 64, 26, 2_048, 2_600_000, 2
NUM_BATCHES, BAR = 12, 1.2


@torch_threads(THREADS)
def measure(scale: Scale) -> list[Figure]:
    """Measures one id per sample and table; all tables together have as many rows as the one table."""
    num_samples, num_rows = scale.rows(NUM_SAMPLES), scale.rows(NUM_ROWS)
    runs: dict[str, Callable[[], object]] = {}
    figures = []
    modules = {}
    for num_tables in (NUM_TABLES, 1):
        modules[num_tables] = _filled(num_tables, num_rows)
    for what in ("forward", "whole step"):
        for num_tables, (module, optimizer) in modules.items():
            runs[str(num_tables)] = _runner(
                module, optimizer, num_tables, num_samples, num_rows, has_step=what == "whole step"
            )
        timings = alternate(runs, rounds=scale.rounds(25))
        found = ratios(timings[str(NUM_TABLES)], timings["1"])
        figures.append(
            Figure(
                what=f"{NUM_TABLES} tables, {num_samples:,} samples of 1 id, {what}",
                value=f"{median(found):.2f} x the time of one table with as many ids",
                bar=f"<= {BAR} x",
                is_reached=median(found) <= BAR,
                detail=(
                    f"{timings[str(NUM_TABLES)].median * 1e3:.2f} against "
                    f"{timings['1'].median * 1e3:.2f} ms; rounds {min(found):.2f}-{max(found):.2f}"
                ),
                ratio=median(found),
            )
        )
    for _, optimizer in modules.values():
        optimizer.container.close()
    return figures


def _filled(num_tables: int, num_rows: int) -> tuple[EmbeddingBagCollection, Optimizer]:
    module = EmbeddingBagCollection(
        [
            EmbeddingBagConfig(name=f"t{i}", embedding_dim=DIM, feature_names=[f"f{i}"])
            for i in range(num_tables)
        ]
    )
    optimizer = Optimizer(module, "rowwise_adagrad", lr=0.01)
    random = np.random.default_rng(0)
    per_table = num_rows // num_tables
    for i in range(num_tables):
        for begin in range(0, per_table, 65_536):
            keys = np.arange(begin, min(begin + 65_536, per_table))
            rows = random.random((len(keys), DIM + 1), np.float32)
            optimizer.container.storage(f"t{i}").upsert(keys, rows)
    return module, optimizer


def _runner(
    module: EmbeddingBagCollection,
    optimizer: Optimizer,
    num_tables: int,
    num_samples: int,
    num_rows: int,
    *,
    has_step: bool,
) -> Callable[[], object]:
    """Runs a step. One table gets all ids in bags of one, so the work is the same."""
    random = np.random.default_rng(1)
    num_ids = num_samples * NUM_TABLES
    batches = cycle(
        [
            KeyedJaggedTensor(
                keys=[f"f{i}" for i in range(num_tables)],
                values=torch.from_numpy(random.integers(0, num_rows // num_tables, num_ids)),
                lengths=torch.ones(num_ids, dtype=torch.int64),
            )
            for _ in range(NUM_BATCHES)
        ]
    )
    with torch.no_grad():
        gradient = torch.randn_like(module(next(batches)).values())

    def forward() -> object:
        with torch.no_grad():
            return module(next(batches)).values()

    def step() -> object:
        optimizer.zero_grad()
        module(next(batches)).values().backward(gradient)
        return optimizer.step()

    return step if has_step else forward
