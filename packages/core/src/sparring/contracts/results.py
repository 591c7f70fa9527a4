"""Arrays that the methods of a storage take, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Columns", "Evicted", "FindResult", "Keys", "Rows", "ScanChunk", "Scores"]

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]
Scores = npt.NDArray[np.uint64]


class Columns(NamedTuple):
    """A half-open range of a row, counted in elements of the table's dtype."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class FindResult:
    """Rows in the order of the keys asked for."""

    rows: Rows
    """``(n, width of columns)``; zeros where `found` is False."""
    found: npt.NDArray[np.bool_]
    """``(n,)``"""


@dataclass(frozen=True, slots=True)
class Evicted:
    """Rows that left to make room, whole, as they last were."""

    keys: Keys
    rows: Rows
    scores: Scores

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class ScanChunk:
    """Some of a storage's rows; at most `chunk_rows` of them."""

    keys: Keys
    rows: Rows
    scores: Scores

    def __len__(self) -> int:
        return len(self.keys)
