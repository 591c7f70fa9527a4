"""What a lookup gives, and what steps counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.storage.contract import Keys, Rows

__all__ = ["Lookup", "StepCounters"]


@dataclass(slots=True)
class Lookup:
    """Ids turned into the rows of a shadow."""

    keys: Keys
    """``(u,)`` in order of first occurrence."""
    inverse: npt.NDArray[np.int64]
    """``(n,)``: the row of each id."""
    rows: Rows
    """``(u, dim)`` of the computing dtype: the caller's own; storages hold other memory."""
    shadow_id: int | None
    """Under which to hand in a gradient; None where nothing was registered."""


@dataclass(slots=True)
class StepCounters:
    """What happened since the container was made."""

    steps: int = 0
    rows_updated: int = 0
    rows_evicted: int = 0
    rows_skipped_non_finite: int = 0
    gradients_not_admitted: int = 0
    """Gradients of keys that had no row and were not admitted."""
