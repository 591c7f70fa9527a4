"""Which rows are held out for the test: seeded, and the same wherever the data is read from."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

__all__ = ["Part", "uniform_of_rows"]

Part = Literal["train", "test", "validation"]
"""Parts of a data set; no row is in two."""


def uniform_of_rows(first_row: int, num_rows: int, *, seed: int) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each of `num_rows` rows of a stream, from `first_row` on.

    A row's place in the stream and the seed determine it, so that a stream of any length is split
    without being counted first, and in the same way for every size of block and batch. The number is
    mixed as SplitMix64 does (Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014).
    """
    start = np.random.PCG64(seed % 2**64).random_raw()
    rows = np.arange(first_row, first_row + num_rows, dtype=np.uint64)
    word = np.uint64(start) + (rows + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    uniform: npt.NDArray[np.float64] = (word >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform
