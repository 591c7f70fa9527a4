"""The list of deliberate bugs, and their building blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.results import Columns, EvictedRows, Keys, Rows, Scores
from sparring.contracts.tables.table import TableConfig
from sparring.storage.memory import MemoryOptions, MemoryStorage

Found = npt.NDArray[np.bool_]
Broken = type[MemoryStorage]

BREAKS: dict[str, tuple[Broken, str]] = {}
"""The name of a break: the broken storage, and the test that must fail on it."""


def caught_by(test: str) -> Callable[[Broken], Broken]:
    """Adds a broken storage to the list."""

    def enter(storage: Broken) -> Broken:
        BREAKS[storage.__name__] = (storage, test)
        return storage

    return enter


def put(storage: MemoryStorage, keys: Keys, rows: Rows) -> EvictedRows:
    """Returns the intact upsert, for bugs that alter its arguments."""
    return MemoryStorage._upsert_impl(storage, keys, np.ascontiguousarray(rows), None)


class KeepsArrays(MemoryStorage):
    """Rows as arrays in a dict, for breaks about whose memory an array is. Not broken itself."""

    def __init__(self, table: TableConfig, options: MemoryOptions | None = None) -> None:
        super().__init__(table, options)
        self._arrays: dict[int, Rows] = {}

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        self._arrays.update(zip(keys.tolist(), self._keep(rows), strict=True))
        return self._nothing_evicted()

    def _keep(self, rows: Rows) -> Rows:
        return rows.copy()

    def _find_impl(self, keys: Keys, columns: Columns, rows: Rows, found: Found) -> None:
        for i, key in enumerate(keys.tolist()):
            row = self._arrays.get(key)
            found[i] = row is not None
            rows[i] = 0 if row is None else row[columns.begin : columns.end]

    def _size_impl(self) -> int:
        return len(self._arrays)
