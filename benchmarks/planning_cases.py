"""Tables and ranks for comparing planners: random ones, MLPerf's, and NVIDIA's synthetic models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["Case", "Sized", "cases", "large_cases", "synthetic"]

FUSED = ("dense", "fused")
"""Kernels of TorchRec that keep rows in GPU memory; replicas use `dense`."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A table.

    Args:
        ids: average number of ids per sample of each of its features.
    """

    rows: int
    dim: int
    ids: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """Tables and ranks.

    Args:
        gibibytes: memory of a GPU.
        kernels: allowed kernels; if empty, those that TorchRec allows by default.
        limit: time limit of TorchRec's search in seconds; None for no limit.
        is_synthetic: whether `synthetic` created the tables.
    """

    name: str
    tables: tuple[Sized, ...]
    ranks: int
    gibibytes: float
    kernels: tuple[str, ...] = FUSED
    batch: int = 1024
    limit: int | None = None
    is_synthetic: bool = False


def synthetic(num_tables: int, ranks: int, seed: int, *, is_tight: bool = False) -> Case:
    """Creates 1e3 to 5e7 rows, log-uniform, dims of 16 to 256, log-normal numbers of ids per sample.

    In a tight case the GPUs have two thirds of the bytes of all tables, and host memory the rest.
    """
    random = np.random.default_rng(seed)
    tables = tuple(
        Sized(
            int(10 ** random.uniform(3, 7.7)),
            int(2 ** random.integers(4, 9)),
            (float(np.round(max(1.0, np.exp(random.normal(1.5, 1))), 1)),),
        )
        for _ in range(num_tables)
    )
    total = sum(table.rows * table.dim * 4 for table in tables) / 2**30
    gibibytes = total / ranks / 1.5 if is_tight else max(80.0, total / ranks * 2)
    kind = "tight" if is_tight else "synthetic"
    return Case(
        f"{kind} {num_tables} x {ranks}, seed {seed}",
        tables,
        ranks,
        gibibytes,
        () if is_tight else FUSED,
        is_synthetic=True,
    )


# Rows and ids per sample of the 26 multi-hot features of Criteo 1TB, from MLPerf's DLRM-DCNv2.
_DCNV2_ROWS = (
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282,
    10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36,
)  # fmt: skip
_DCNV2_IDS = (
    3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1,
)  # fmt: skip

# NVIDIA's synthetic models, distributed-embeddings, examples/benchmarks/synthetic_models (v3): tables,
# ids per sample (two numbers if two features share a table), rows, dim.
_SYNTHETIC_MODELS: dict[str, tuple[tuple[int, tuple[int, ...], int, int], ...]] = {
    "Tiny": (
        (1, (1, 10), 10_000, 8), (1, (1, 10), 1_000_000, 16), (1, (1, 10), 25_000_000, 16),
        (1, (1,), 25_000_000, 16), (16, (1,), 10, 8), (10, (1,), 1_000, 8), (4, (1,), 10_000, 8),
        (2, (1,), 100_000, 16), (19, (1,), 1_000_000, 16),
    ),
    "Small": (
        (5, (1, 30), 10_000, 16), (3, (1, 30), 4_000_000, 32), (1, (1, 30), 50_000_000, 32),
        (1, (1,), 50_000_000, 32), (30, (1,), 10, 16), (30, (1,), 1_000, 16),
        (5, (1,), 10_000, 16), (5, (1,), 100_000, 32), (27, (1,), 4_000_000, 32),
    ),
    "Medium": (
        (20, (1, 50), 100_000, 64), (5, (1, 50), 10_000_000, 64), (1, (1, 50), 100_000_000, 128),
        (1, (1,), 100_000_000, 128), (80, (1,), 10, 32), (60, (1,), 1_000, 32),
        (80, (1,), 100_000, 64), (24, (1,), 200_000, 64), (40, (1,), 10_000_000, 64),
    ),
    "Large": (
        (40, (1, 100), 100_000, 64), (16, (1, 100), 15_000_000, 64),
        (1, (1, 100), 200_000_000, 128), (1, (1,), 200_000_000, 128), (100, (1,), 10, 32),
        (100, (1,), 10_000, 32), (160, (1,), 100_000, 64), (50, (1,), 500_000, 64),
        (144, (1,), 15_000_000, 64),
    ),
    "Jumbo": (
        (50, (1, 200), 100_000, 128), (24, (1, 200), 20_000_000, 128),
        (1, (1, 200), 400_000_000, 256), (1, (1,), 400_000_000, 256), (100, (1,), 10, 32),
        (200, (1,), 10_000, 64), (350, (1,), 100_000, 128), (80, (1,), 1_000_000, 128),
        (216, (1,), 20_000_000, 128),
    ),
}  # fmt: skip


def _of_model(name: str, ranks: int, gibibytes: float = 80, limit: int | None = None) -> Case:
    tables = [
        Sized(rows, dim, tuple(map(float, ids)))
        for count, ids, rows, dim in _SYNTHETIC_MODELS[name]
        for _ in range(count)
    ]
    return Case(f"{name} x {ranks}", tuple(tables), ranks, gibibytes, limit=limit)


def _dcnv2(ranks: int) -> Case:
    tables = tuple(
        Sized(rows, 128, (float(ids),)) for rows, ids in zip(_DCNV2_ROWS, _DCNV2_IDS, strict=True)
    )
    return Case(f"DLRM-DCNv2 x {ranks}", tables, ranks, 80)


def cases() -> Iterator[Case]:
    """Lists the cases that TorchRec plans in at most a minute each."""
    yield from (synthetic(26, 8, seed) for seed in range(8))
    yield from (synthetic(60, 16, seed) for seed in range(5))
    yield from (synthetic(100, 16, seed) for seed in range(4))
    yield from (synthetic(26, 8, seed, is_tight=True) for seed in range(4))
    yield from (synthetic(60, 16, seed, is_tight=True) for seed in range(2))
    yield from (_dcnv2(ranks) for ranks in (8, 16, 32))
    yield from (_of_model("Tiny", ranks) for ranks in (8, 16))
    yield from (_of_model("Small", ranks) for ranks in (8, 16))
    yield from (_of_model("Medium", ranks) for ranks in (8, 16))


def large_cases() -> Iterator[Case]:
    """Lists the cases that TorchRec plans in many minutes; `limit` stops it if it takes much longer."""
    yield synthetic(100, 16, 0, is_tight=True)
    yield synthetic(200, 32, 0)
    yield _of_model("Large", 16, limit=300)
    yield _of_model("Jumbo", 32, 141, limit=300)
    yield synthetic(500, 128, 0)
