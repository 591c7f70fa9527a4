"""Whether gradients are finite, in one pass."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["is_finite"]


def is_finite(array: npt.NDArray[Any]) -> bool:
    """Whether no element is NaN or infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(array.sum())
    # A sum of finite numbers may overflow; then each is looked at.
    return math.isfinite(total) or bool(np.isfinite(array).all())
