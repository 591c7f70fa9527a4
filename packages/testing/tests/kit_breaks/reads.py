"""Bugs of `find`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.results import Columns, FindResult, Keys, Rows
from sparring.errors import InvalidArgumentError
from sparring.storage.memory import MemoryStorage

from .registry import Found, caught_by, put


@caught_by("test_missing_rows_are_zeros_and_found_is_false")
class FindLeavesMissingRowsAlone(MemoryStorage):
    def _find_impl(self, keys: Keys, columns: Columns, rows: Rows, found: Found) -> None:
        before = rows.copy()
        super()._find_impl(keys, columns, rows, found)
        rows[~found] = before[~found]


@caught_by("test_find_changes_nothing")
class FindInserts(MemoryStorage):
    def _find_impl(self, keys: Keys, columns: Columns, rows: Rows, found: Found) -> None:
        super()._find_impl(keys, columns, rows, found)
        put(self, keys[~found], np.zeros((int((~found).sum()), self.table.width), rows.dtype))


@caught_by("test_find_keeps_scores")
class FindTouches(MemoryStorage):
    def _find_impl(self, keys: Keys, columns: Columns, rows: Rows, found: Found) -> None:
        super()._find_impl(keys, columns, rows, found)
        if self.capabilities.touch:
            self._touch_impl(keys, None)


@caught_by("test_find_returns_rows_in_the_order_of_its_keys")
class FindSorts(MemoryStorage):
    def _find_impl(self, keys: Keys, columns: Columns, rows: Rows, found: Found) -> None:
        super()._find_impl(np.sort(keys), columns, rows, found)


@caught_by("test_columns_select_a_part_of_each_row")
class FindIgnoresTheBeginOfColumns(MemoryStorage):
    def _find_impl(self, keys: Keys, columns: Columns, rows: Rows, found: Found) -> None:
        super()._find_impl(keys, Columns(0, columns.end - columns.begin), rows, found)


@caught_by("test_out_is_filled_in_place")
class FindIgnoresOut(MemoryStorage):
    def find(
        self, keys: npt.ArrayLike, columns: Columns | None = None, *, out: Rows | None = None
    ) -> FindResult:
        return super().find(keys, columns)


@caught_by("test_empty_calls_are_accepted")
class FindRefusesNothing(MemoryStorage):
    def find(self, keys: npt.ArrayLike, *parts: Any, **options: Any) -> FindResult:
        if not np.size(keys):
            raise InvalidArgumentError("no keys")
        return super().find(keys, *parts, **options)


@caught_by("test_find_in_an_empty_storage_finds_nothing")
class FindsAllInAnEmptyStorage(MemoryStorage):
    def _find_impl(self, keys: Keys, columns: Columns, rows: Rows, found: Found) -> None:
        super()._find_impl(keys, columns, rows, found)
        found |= not self._entries


@caught_by("test_find_result_has_the_promised_types")
class FindGivesBytes(MemoryStorage):
    def find(self, keys: npt.ArrayLike, *parts: Any, **options: Any) -> FindResult:
        result = super().find(keys, *parts, **options)
        return FindResult(result.rows, result.found.view(np.uint8))  # type: ignore[arg-type]
