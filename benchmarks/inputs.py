"""Batches of ids, the same for all contenders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Batch", "batches"]

_SPREAD = 0x9E3779B97F4A7C15  # odd, so multiplication by it permutes the 64-bit integers


@dataclass(frozen=True)
class Batch:
    """Bags of ids, all of the same size."""

    ids: npt.NDArray[np.int64]
    """``(num_bags * bag_size,)``, each in ``[0, num_rows)``."""
    offsets: npt.NDArray[np.int64]
    """``(num_bags + 1,)``"""


def batches(
    count: int, *, skew: str, num_rows: int, num_bags: int, bag_size: int, seed: int = 0
) -> list[Batch]:
    """Creates different batches, so that none finds the rows of the previous one in a cache.

    Args:
        count: number of batches.
        skew: ``uniform``, or ``zipf`` with exponent 1.05, cut off at `num_rows`, with frequent ids
            scattered over the table.
        num_rows: number of rows of the table.
        num_bags: number of bags per batch.
        bag_size: number of ids per bag.
        seed: random seed.
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
    """Maps ranks to rows with a fixed hash, so that adjacent ranks are not adjacent in memory."""
    hashed = (ranks.astype(np.uint64) + np.uint64(1)) * np.uint64(_SPREAD)
    return (hashed % np.uint64(num_rows)).astype(np.int64)
