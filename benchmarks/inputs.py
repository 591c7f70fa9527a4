"""Batches of ids, the same for all contenders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Batch", "batches"]

_SPREAD = 0x9E3779B97F4A7C15  # odd, so multiplying by it permutes the 64-bit numbers


@dataclass(frozen=True)
class Batch:
    """Bags of ids, all of one size."""

    ids: npt.NDArray[np.int64]
    """``(num_bags * bag_size,)``, each in ``[0, num_rows)``."""
    offsets: npt.NDArray[np.int64]
    """``(num_bags + 1,)``"""


def batches(
    count: int, *, skew: str, num_rows: int, num_bags: int, bag_size: int, seed: int = 0
) -> list[Batch]:
    """Batches that differ, so that none finds the rows of the one before in a cache.

    Args:
        skew: ``uniform``, or ``zipf``: exponent 1.05, cut off at `num_rows`, popular ids scattered
            over the table.
    """
    random = np.random.default_rng(seed)
    offsets = np.arange(num_bags + 1, dtype=np.int64) * bag_size
    made = []
    cumulative = _zipf(num_rows) if skew == "zipf" else None
    for _ in range(count):
        if cumulative is None:
            ids = random.integers(0, num_rows, num_bags * bag_size)
        else:
            ranks = np.searchsorted(cumulative, random.random(num_bags * bag_size))
            ids = _scattered(np.minimum(ranks, num_rows - 1), num_rows)
        made.append(Batch(ids, offsets))
    return made


def _zipf(num_rows: int, exponent: float = 1.05) -> npt.NDArray[np.float64]:
    weights = np.arange(1, num_rows + 1, dtype=np.float64) ** -exponent
    cumulative = np.cumsum(weights)
    return np.asarray(cumulative / cumulative[-1])


def _scattered(ranks: npt.NDArray[np.int64], num_rows: int) -> npt.NDArray[np.int64]:
    """Rank to row by a fixed hash: neighbors in rank are not neighbors in memory."""
    hashed = (ranks.astype(np.uint64) + np.uint64(1)) * np.uint64(_SPREAD)
    return (hashed % np.uint64(num_rows)).astype(np.int64)
