"""Which rows are held out for the test: seeded, and the same wherever the data is read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError
from sparring_train.data.batches import RatingBatch, take

__all__ = [
    "Part",
    "RatingSplit",
    "check_test_fraction",
    "split_ratings",
    "uniform_of_rows",
]

Part = Literal["train", "test", "validation"]
"""Parts of a data set; no row is in two."""


@dataclass(frozen=True, slots=True)
class RatingSplit:
    """Three parts of one data set; no row is in two of them."""

    train: RatingBatch
    test: RatingBatch
    validation: RatingBatch


def split_ratings(
    data: RatingBatch,
    *,
    test_fraction: float = 0.1,
    validation_fraction: float = 0.0,
    seed: int = 0,
) -> RatingSplit:
    """A random split by one permutation of the rows, drawn from ``PCG64(seed)``.

    The test part holds ``round(test_fraction * len(data))`` rows, and the validation part that share
    of the others. The test part does not depend on `validation_fraction`.

    Raises:
        InvalidArgumentError: a fraction is not in [0, 1).
    """
    check_test_fraction(test_fraction)
    check_test_fraction(validation_fraction)
    order = np.random.Generator(np.random.PCG64(seed % 2**64)).permutation(len(data))
    num_test = round(test_fraction * len(data))
    end = num_test + round(validation_fraction * (len(data) - num_test))
    return RatingSplit(
        train=take(data, order[end:]),
        test=take(data, order[:num_test]),
        validation=take(data, order[num_test:end]),
    )


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


def check_test_fraction(test_fraction: float) -> None:
    """Raises InvalidArgumentError unless `test_fraction` is in [0, 1)."""
    if not 0 <= test_fraction < 1:
        raise InvalidArgumentError(
            f"test_fraction: found {test_fraction}, must be at least 0 and below 1"
        )
