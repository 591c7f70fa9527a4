"""Columns of a click log in Criteo format, and the transformation of its integers."""

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
"""Names of the 40 fields of a line, in order."""

MISSING_IDS = np.arange(-1, -1 - NUM_FEATURES, -1, dtype=np.int64)
"""``(26,)``: id of each feature in rows that have none, -1 to -26.

Ids in hexadecimal are not negative and these differ between features, so a missing id is never equal to
another id, even if features share a table.
"""
MISSING_IDS.setflags(write=False)


def transform_integers(
    integers: npt.NDArray[Any], is_missing: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float32]:
    """Returns ``log1p(max(x, 0))``, or 0 if missing, in the shape of `integers`."""
    known = np.where(is_missing, 0, integers)
    dense: npt.NDArray[np.float32] = np.log1p(np.maximum(known, 0).astype(np.float32))
    return dense
