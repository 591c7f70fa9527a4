"""What an update gets, and what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sparring.storage.contract import Keys, Rows
from sparring.table import TableConfig

__all__ = ["TableUpdate", "Update"]


@dataclass(slots=True)
class TableUpdate:
    """What an update gets for one table: it changes `rows` in place.

    Arrays are NumPy's; or, where a framework handed in its own on a device, those of the framework
    there, as `sparring.kernel_set.DeviceArray`.
    """

    table: TableConfig
    keys: Keys
    """``(u,)``"""
    rows: Rows
    """``(u, dim + state_width)`` of the computing dtype: embedding, then state."""
    gradients: Rows
    """``(u, dim)`` of the computing dtype."""
    step: int
    """The number of this step, from 1: rounding to 16 bits is seeded by it."""


class Update(Protocol):
    """Changes the rows of all updates in place, in one call for a step."""

    def __call__(self, updates: Sequence[TableUpdate], /) -> None: ...
