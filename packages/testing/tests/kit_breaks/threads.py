"""Bugs that show between threads."""

from __future__ import annotations

import time

import numpy as np

from sparring.contracts.storage.results import Columns, EvictedRows, Keys, Rows, Scores
from sparring.storage.memory import MemoryStorage

from .registry import Found, KeepsArrays, caught_by

_WHILE = 0.002  # seconds in which another thread surely looks


@caught_by("test_readers_during_writes_see_old_or_new_rows_never_a_mixture")
class WritesRowsInTwoHalves(KeepsArrays):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        half = self.table.width // 2
        for part in (slice(0, half), slice(half, None)):
            for key, row in zip(keys.tolist(), rows, strict=True):
                self._arrays.setdefault(key, row.copy())[part] = row[part]
            time.sleep(_WHILE)
        return self._nothing_evicted()


@caught_by("test_readers_during_writes_see_old_or_new_rows_never_a_mixture")
class ReplacesByRemovingFirst(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        self._erase_impl(keys)
        time.sleep(_WHILE)
        return super()._upsert_impl(keys, rows, scores)


@caught_by("test_readers_during_erasure_see_whole_rows_or_none")
class ErasesByZeroing(KeepsArrays):
    def _erase_impl(self, keys: Keys) -> int:
        for key in keys.tolist():
            self._arrays[key] = np.zeros_like(self._arrays[key])
        time.sleep(_WHILE)
        return sum(self._arrays.pop(key, None) is not None for key in keys.tolist())


@caught_by("test_concurrent_readers_agree")
class FindSharesItsScratch(MemoryStorage):
    def _find_impl(self, keys: Keys, columns: Columns, rows: Rows, found: Found) -> None:
        self._scratch = keys
        time.sleep(_WHILE)
        super()._find_impl(self._scratch[: len(rows)], columns, rows, found)
