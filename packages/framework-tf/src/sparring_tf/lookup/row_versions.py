"""Versions of rows, which connect the values of `get_weights` to the rows at that time.

`get_weights` does not contain rows. The value of an anchor has no elements, but contains the version of
the rows::

    get_weights ──► VersionedWeight (0, dim): version 7, of step 120
    set_weights ◄── version 7, while the rows have version 12: lookups raise an error
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparring import StepContainer

__all__ = [
    "COMPUTED",
    "RowVersion",
    "VersionedWeight",
    "record_change",
    "set_version",
    "get_version",
]


@dataclass(frozen=True, slots=True)
class RowVersion:
    """One state of the rows of a table in one process."""

    number: int = 0
    """Unique number; 0 before the first change."""
    step: int = 0
    """Number of steps of the container at this version."""


COMPUTED = RowVersion(-1)
"""Version of a result of arithmetic, such as an average, which no rows have."""


class VersionedWeight(np.ndarray):  # type: ignore[type-arg,unused-ignore]
    """Value of an anchor. Copies, including pickled ones, keep the version."""

    version: RowVersion | None = None
    owner: str = ""
    """Token that identifies the layer's tables."""

    @classmethod
    def of(cls, values: Any, version: RowVersion | None, owner: str) -> VersionedWeight:
        """Creates a value with this version."""
        made = np.asarray(values).view(cls)
        made.version, made.owner = version, owner
        return made

    def __array_finalize__(self, source: Any) -> None:
        self.version = getattr(source, "version", None)
        self.owner = getattr(source, "owner", "")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        outputs = options.get("out", ())
        if outputs:
            options["out"] = tuple(map(_without_version, outputs))
        result = getattr(ufunc, method)(*map(_without_version, inputs), **options)
        for each in outputs:
            if isinstance(each, VersionedWeight):
                each.version = COMPUTED
        if len(outputs) == 1:
            return outputs[0]
        return VersionedWeight.of(result, COMPUTED, "") if type(result) is np.ndarray else result

    def __reduce__(self) -> Any:
        return VersionedWeight.of, (np.asarray(self), self.version, self.owner)


def _without_version(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, VersionedWeight) else value


_numbers = itertools.count(1)
_current: weakref.WeakKeyDictionary[StepContainer, dict[str, RowVersion]] = (
    weakref.WeakKeyDictionary()
)


def record_change(container: StepContainer, tables: Iterable[str]) -> None:
    """Assigns a new version to the rows of `tables`."""
    for table in tables:
        set_version(container, table, RowVersion(next(_numbers), container.counters.steps))


def set_version(container: StepContainer, table: str, version: RowVersion) -> None:
    """Sets the version of the rows of `table`."""
    _current.setdefault(container, {})[table] = version


def get_version(container: StepContainer, table: str) -> RowVersion:
    """Returns the current version of the rows of a table."""
    return _current.get(container, {}).get(table, RowVersion())
