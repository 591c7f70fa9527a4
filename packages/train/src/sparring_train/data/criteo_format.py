"""The columns of a click log in Criteo format, and what becomes of their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "COLUMNS",
    "MISSING_IDS",
    "NUM_FEATURES",
    "NUM_INTEGERS",
    "transform_integers",
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
