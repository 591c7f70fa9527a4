"""Pseudorandom numbers of rows, by which rows are drawn for the test and for validation."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from sparring import hash_strings

__all__ = ["Part", "seed_of_file", "uniform_of_keys", "uniform_of_rows"]

Part = Literal["train", "test", "validation"]
"""Parts of a data set, which are disjoint."""


def uniform_of_rows(first_row: int, num_rows: int, *, seed: int) -> npt.NDArray[np.float64]:
    """Returns a pseudorandom number in [0, 1) for each of `num_rows` rows, starting at `first_row`.

    It depends only on the seed and the number of the row. Therefore a stream can be split without
    counting its rows, and the split does not depend on the size of blocks and batches.
    """
    words = np.arange(first_row + 1, first_row + num_rows + 1, dtype=np.uint64)
    return _mix(words, seed)


def uniform_of_keys(keys: npt.NDArray[np.int64], *, seed: int) -> npt.NDArray[np.float64]:
    """Returns a pseudorandom number in [0, 1) for each key ``(n,)``, which depends only on the seed and
    the key."""
    return _mix(keys.astype(np.uint64), seed)


def seed_of_file(seed: int, name: str) -> int:
    """Returns the seed for the rows of one file of a data set."""
    return int(hash_strings([f"{seed % 2**64} {name}"])[0])


def _mix(word: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.float64]:
    """Overwrites `word`. Uses the mixing function of SplitMix64 (Steele, Lea and Flood, "Fast splittable
    pseudorandom number generators", OOPSLA 2014)."""
    start = np.random.PCG64(seed % 2**64).random_raw()
    word *= np.uint64(0x9E3779B97F4A7C15)
    word += np.uint64(start)
    word ^= word >> np.uint64(30)
    word *= np.uint64(0xBF58476D1CE4E5B9)
    word ^= word >> np.uint64(27)
    word *= np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    word >>= np.uint64(11)
    uniform: npt.NDArray[np.float64] = word.astype(np.float64)
    uniform *= 2.0**-53
    return uniform
