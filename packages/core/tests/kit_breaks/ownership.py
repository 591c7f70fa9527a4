"""Bugs about whose memory an array is."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.storage.contract import (
    Evicted,
    FindResult,
    Keys,
    Rows,
    Scores,
)
from sparring.storage.memory import MemoryStorage

from .registry import KeepsArrays, caught_by, put


@caught_by("test_arrays_passed_in_may_be_overwritten_afterwards")
class UpsertKeepsTheCallersRows(KeepsArrays):
    def _keep(self, rows: Rows) -> Rows:
        return rows


@caught_by("test_found_rows_are_the_callers_own")
class FindGivesItsOwnRows(KeepsArrays):
    def find(self, keys: npt.ArrayLike, *parts: Any, **options: Any) -> FindResult:
        result = super().find(keys, *parts, **options)
        found = [self._arrays.get(key) for key in np.asarray(keys).tolist()]
        if found and all(row is not None and row.base is found[0].base for row in found):  # type: ignore[union-attr]
            return FindResult(found[0].base, result.found)  # type: ignore[union-attr,arg-type]
        return result


@caught_by("test_arrays_passed_in_are_not_written_to")
class UpsertSortsTheCallersKeys(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> Evicted:
        order = np.argsort(keys)
        evicted = put(self, keys[order], rows[order])
        keys.flags.writeable = True
        keys.sort()
        return evicted
