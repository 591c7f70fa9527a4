"""The columns of a click log in Criteo format, and what becomes of their values."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute

from sparring_train.data.batches import ClickBatch

__all__ = [
    "COLUMNS",
    "MISSING_IDS",
    "NUM_FEATURES",
    "NUM_INTEGERS",
    "OptionalNumbers",
    "click_batch",
    "hex_numbers",
    "transform_integers",
    "whole_numbers",
]

NUM_INTEGERS = 13
NUM_FEATURES = 26

COLUMNS = (
    "label",
    *(f"int_{number}" for number in range(1, NUM_INTEGERS + 1)),
    *(f"cat_{number}" for number in range(1, NUM_FEATURES + 1)),
)
"""Names of the 40 fields of a line, in order, as messages use them."""

MISSING_IDS = np.arange(-1, -1 - NUM_FEATURES, -1, dtype=np.int64)
"""``(26,)``: the id of each feature where a row has none: -1 to -26.

Hex strings write no negative number, and no two features have the same one, so a missing id
never meets another id, in a shared table neither.
"""
MISSING_IDS.setflags(write=False)


def transform_integers(
    integers: npt.NDArray[Any], is_missing: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float32]:
    """``log1p(max(x, 0))``, and 0 where missing; the shape of `integers`."""
    known = np.where(is_missing, 0, integers)
    dense: npt.NDArray[np.float32] = np.log1p(np.maximum(known, 0).astype(np.float32))
    return dense


@dataclass(frozen=True, slots=True)
class OptionalNumbers:
    """A column of a click log."""

    values: npt.NDArray[np.int64]
    """``(n,)``; arbitrary where missing."""
    is_missing: npt.NDArray[np.bool_]
    """``(n,)``"""


def whole_numbers(array: Any) -> OptionalNumbers:
    """Numbers of an Arrow array of integers below 2**63; null is missing."""
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    return OptionalNumbers(
        values.astype(np.int64, copy=False), array.is_null().to_numpy(zero_copy_only=False)
    )


def hex_numbers(array: Any) -> OptionalNumbers:
    """Numbers of an Arrow array of text with 1 to 8 hex digits; null is missing.

    Raises:
        ValueError: a text holds anything else.
    """
    is_missing = array.is_null().to_numpy(zero_copy_only=False)
    values = np.zeros(len(array), np.int64)
    if not is_missing.all():
        digits = array.drop_null().cast(pyarrow.string())
        shortest, longest = pyarrow.compute.min_max(pyarrow.compute.binary_length(digits)).values()
        if longest.as_py() > 8:
            raise ValueError("more than 8 hex digits")
        if shortest.as_py() < 8:
            digits = pyarrow.compute.ascii_lpad(digits, width=8, padding="0")
        begin = np.frombuffer(digits.buffers()[1], np.int32)[digits.offset]
        text = memoryview(digits.buffers()[2])[begin : begin + 8 * len(digits)]
        values[~is_missing] = np.frombuffer(binascii.unhexlify(text), ">u4")
    return OptionalNumbers(values, is_missing)


def click_batch(
    label: OptionalNumbers, integers: Sequence[OptionalNumbers], ids: Sequence[OptionalNumbers]
) -> ClickBatch:
    """Batch of the 40 columns of a click log."""
    return ClickBatch(
        dense=transform_integers(
            np.stack([column.values for column in integers], axis=1),
            np.stack([column.is_missing for column in integers], axis=1),
        ),
        ids=np.stack(
            [
                np.where(column.is_missing, missing, column.values)
                for column, missing in zip(ids, MISSING_IDS, strict=True)
            ],
            axis=1,
        ),
        labels=label.values.astype(np.float32),
    )
