"""What the storage contract speaks of: keys and rows, results, and what a storage can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "Capabilities",
    "Columns",
    "Evicted",
    "FindResult",
    "Keys",
    "Rows",
    "ScanChunk",
    "Scores",
]

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]
Scores = npt.NDArray[np.uint64]


class Columns(NamedTuple):
    """A half-open range of a row, counted in elements of the table's dtype."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a storage can do: data that the runtime and the test kit both read.

    A feature declared absent must fail with `UnsupportedError`.
    """

    persistent: bool = False
    """Rows outlive the process: closing and opening again finds them."""
    shared: bool = False
    """Ranks of a job, and other processes, reach the same rows in one place."""
    native: bool = False
    """`__sparring_storage__` gives a struct that never calls Python."""
    devices: tuple[str, ...] = ("cpu",)
    """Where keys and rows may live."""
    concurrent_reads: bool = False
    """Readers may run beside one writer."""
    bounded: bool = False
    """A capacity limits the rows; see `Storage.capacity`."""
    evicts: bool = False
    """A full storage evicts its lowest scores; otherwise it raises `CapacityError`."""
    evict: bool = False
    """`Storage.evict` is offered."""
    touch: bool = False
    """`Storage.touch` is offered."""
    scores: str = "none"
    """`none`: not kept, read as 0. `policy`: the storage's own. `given`: the caller's."""
    notes_loads: bool = False
    """A load that was cut short is known of when the storage is opened again."""
    eviction_scope: str = "table"
    """`table`: the lowest score of the whole table leaves. `bucket`: of some bucket."""


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
