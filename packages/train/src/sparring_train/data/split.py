"""Which rows are held out for the test: seeded, and the same wherever the data is read from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError
from sparring_train.data.batches import RatingBatch, take

__all__ = ["RatingSplit", "check_test_fraction", "is_test_row", "split_ratings"]


@dataclass(frozen=True, slots=True)
class RatingSplit:
    """Two parts of one data set; no row is in both."""

    train: RatingBatch
    test: RatingBatch


def split_ratings(data: RatingBatch, *, test_fraction: float = 0.1, seed: int = 0) -> RatingSplit:
    """A random split by one permutation of the rows, drawn from ``PCG64(seed)``.

    The test part holds ``round(test_fraction * len(data))`` rows.

    Raises:
        InvalidArgumentError: `test_fraction` is not in [0, 1).
    """
    check_test_fraction(test_fraction)
    order = np.random.Generator(np.random.PCG64(seed % 2**64)).permutation(len(data))
    num_test = round(test_fraction * len(data))
    return RatingSplit(train=take(data, order[num_test:]), test=take(data, order[:num_test]))


def is_test_row(
    first_row: int, num_rows: int, *, test_fraction: float, seed: int
) -> npt.NDArray[np.bool_]:
    """Whether each of `num_rows` rows of a stream, from `first_row` on, is held out.

    A row's place in the stream and the seed decide alone, so a stream of any length is split
    without being counted first, and alike for every size of block and batch. The number is
    mixed as SplitMix64 does (Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014).

    Returns:
        ``(num_rows)``; about `test_fraction` of it is True.

    Raises:
        InvalidArgumentError: `test_fraction` is not in [0, 1).
    """
    check_test_fraction(test_fraction)
    start = np.random.PCG64(seed % 2**64).random_raw()
    rows = np.arange(first_row, first_row + num_rows, dtype=np.uint64)
    word = np.uint64(start) + (rows + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    uniform = (word >> np.uint64(11)).astype(np.float64) * 2.0**-53
    is_test: npt.NDArray[np.bool_] = uniform < test_fraction
    return is_test


def check_test_fraction(test_fraction: float) -> None:
    """Raises InvalidArgumentError unless `test_fraction` is in [0, 1)."""
    if not 0 <= test_fraction < 1:
        raise InvalidArgumentError(
            f"test_fraction: found {test_fraction}, must be at least 0 and below 1"
        )
