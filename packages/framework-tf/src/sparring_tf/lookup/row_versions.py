"""Versions of rows: which rows the values of `get_weights` belong to.

Rows are no part of `get_weights`. The value of an anchor there has no elements, and says which version
of the rows was current::

    get_weights ──► VersionedWeight (0, dim): version 7, of step 120
    set_weights ◄── version 7, while the rows are version 12: lookups are refused
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparring import StepContainer

__all__ = ["RowVersion", "VersionedWeight", "record_change", "set_version", "get_version"]


@dataclass(frozen=True, slots=True)
class RowVersion:
    """One state of the rows of a table, in one process."""

    number: int = 0
    """Unique; 0 before the first change."""
    step: int = 0
    """Steps that the container had taken."""


class VersionedWeight(np.ndarray):  # type: ignore[type-arg,unused-ignore]
    """The value of an anchor. Copies keep the version, pickled ones too."""

    version: RowVersion | None = None
    owner: str = ""
    """Token of the layer's tables."""

    @classmethod
    def of(cls, values: Any, version: RowVersion | None, owner: str) -> VersionedWeight:
        """`values` of that version."""
        made = np.asarray(values).view(cls)
        made.version, made.owner = version, owner
        return made

    def __array_finalize__(self, source: Any) -> None:
        self.version = getattr(source, "version", None)
        self.owner = getattr(source, "owner", "")

    def __reduce__(self) -> Any:
        return VersionedWeight.of, (np.asarray(self), self.version, self.owner)


_numbers = itertools.count(1)
_current: weakref.WeakKeyDictionary[StepContainer, dict[str, RowVersion]] = (
    weakref.WeakKeyDictionary()
)


def record_change(container: StepContainer, tables: Iterable[str]) -> None:
    """Gives the rows of `tables` a new version."""
    for table in tables:
        set_version(container, table, RowVersion(next(_numbers), container.counters.steps))


def set_version(container: StepContainer, table: str, version: RowVersion) -> None:
    """Says that the rows of `table` are those of `version`."""
    _current.setdefault(container, {})[table] = version


def get_version(container: StepContainer, table: str) -> RowVersion:
    """Version of the rows of a table now."""
    return _current.get(container, {}).get(table, RowVersion())
