"""Bugs about whose memory an array is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.results import Columns, EvictedRows, FindResult, Keys, Rows, Scores
from sparring.storage.memory import MemoryStorage

from .registry import Found, KeepsArrays, caught_by, put


@caught_by("test_arrays_passed_in_may_be_overwritten_afterwards")
class UpsertKeepsTheCallersRows(KeepsArrays):
    def _keep(self, rows: Rows) -> Rows:
        return rows


@caught_by("test_found_rows_belong_to_the_caller")
class FindGivesItsOwnRows(KeepsArrays):
    def find(self, keys: npt.ArrayLike, *parts: Any, **options: Any) -> FindResult:
        result = super().find(keys, *parts, **options)
        found = [self._arrays.get(key) for key in np.asarray(keys).tolist()]
        if found and all(row is not None and row.base is found[0].base for row in found):  # type: ignore[union-attr]
            return FindResult(found[0].base, result.found)  # type: ignore[union-attr,arg-type]
        return result


@caught_by("test_arrays_passed_in_are_not_written_to")
class UpsertSortsTheCallersKeys(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        order = np.argsort(keys)
        evicted = put(self, keys[order], rows[order])
        keys.flags.writeable = True
        keys.sort()
        return evicted


@caught_by("test_arrays_outlive_the_storage")
class CloseTakesArraysBack(MemoryStorage):
    _given: Rows | None = None

    def _find_impl(self, keys: Keys, columns: Columns, rows: Rows, found: Found) -> None:
        super()._find_impl(keys, columns, rows, found)
        self._given = rows

    def _close_impl(self) -> None:
        super()._close_impl()
        if self._given is not None:
            self._given[:] = 0


@caught_by("test_evicted_rows_belong_to_the_caller")
class EvictedArraysAreReused(MemoryStorage):
    _buffer: Keys | None = None

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        evicted = super()._upsert_impl(keys, rows, scores)
        if self._buffer is None:
            self._buffer = np.empty(100_000, np.int64)
        self._buffer[: len(evicted)] = evicted.keys
        return replace(evicted, keys=self._buffer[: len(evicted)])
