"""Bugs of rejected input and of declared capabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.capabilities import Capabilities
from sparring.contracts.storage.results import (
    Columns,
    EvictedRows,
    FindResult,
    Rows,
    ScanChunk,
    Scores,
)
from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError
from sparring.storage.memory import MemoryOptions, MemoryStorage

from .registry import caught_by


@caught_by("test_invalid_keys_are_rejected_and_change_nothing")
class RoundsFloatKeys(MemoryStorage):
    def upsert(self, keys: npt.ArrayLike, *parts: Any) -> EvictedRows:
        array = np.asarray(keys)
        return super().upsert(array.astype(np.int64) if array.dtype.kind == "f" else array, *parts)


@caught_by("test_duplicate_keys_are_rejected_and_change_nothing")
class WritesBeforeItChecks(MemoryStorage):
    def upsert(self, keys: npt.ArrayLike, rows: npt.ArrayLike, *parts: Any) -> EvictedRows:
        if np.ndim(keys) == 1 and np.shape(rows) == (np.size(keys), self.table.width):
            for key, row in zip(np.asarray(keys), np.asarray(rows), strict=True):
                super().upsert([key], [row], *parts)
        return super().upsert(keys, rows, *parts)


@caught_by("test_rows_of_wrong_dtype_are_rejected_and_change_nothing")
class ConvertsRows(MemoryStorage):
    def upsert(self, keys: npt.ArrayLike, rows: npt.ArrayLike, *parts: Any) -> EvictedRows:
        return super().upsert(keys, np.asarray(rows, self.table.numpy_dtype), *parts)


@caught_by("test_rows_of_16_bits_accept_no_other_dtype")
class TakesAnyTwoBytes(MemoryStorage):
    def upsert(self, keys: npt.ArrayLike, rows: npt.ArrayLike, *parts: Any) -> EvictedRows:
        array = np.asarray(rows)
        same_size = array.itemsize == self.table.numpy_dtype.itemsize
        return super().upsert(
            keys, array.view(self.table.numpy_dtype) if same_size else array, *parts
        )


@caught_by("test_undeclared_touch_is_rejected")
class TouchesInSecret(MemoryStorage):
    def touch(self, keys: npt.ArrayLike, scores: npt.ArrayLike | None = None) -> None:
        self._check_open()


@caught_by("test_unsupported_scores_are_rejected")
class IgnoresScores(MemoryStorage):
    def upsert(self, keys: npt.ArrayLike, rows: npt.ArrayLike, *parts: Any) -> EvictedRows:
        return super().upsert(keys, rows)


@caught_by("test_declared_capabilities_agree_with_each_other")
class DeclaresABoundAndHasNone(MemoryStorage):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.capabilities = Capabilities(bounded=True)


@caught_by("test_memory_bytes_grow_with_rows_and_are_plausible")
class CountsRowsOnly(MemoryStorage):
    @property
    def memory_bytes(self) -> int:
        self._check_open()
        return len(self._entries) * self.table.row_bytes


@caught_by("test_estimated_bytes_equal_the_memory_of_rows")
class EstimatesRowsOnly(MemoryStorage):
    @staticmethod
    def estimate(table: TableConfig, options: MemoryOptions, rows: int) -> dict[str, int]:
        return {"host": rows * table.row_bytes}


@caught_by("test_rows_of_wrong_shape_are_rejected_and_change_nothing")
class FitsRows(MemoryStorage):
    def upsert(self, keys: npt.ArrayLike, rows: npt.ArrayLike, *parts: Any) -> EvictedRows:
        return super().upsert(keys, np.resize(rows, (np.size(keys), self.table.width)), *parts)


@caught_by("test_columns_out_of_range_are_rejected")
class CutsColumns(MemoryStorage):
    def find(self, keys: npt.ArrayLike, columns: Any = None, **options: Any) -> FindResult:
        if columns is not None:
            columns = Columns(max(0, columns[0]), min(self.table.width, columns[1]))
        return super().find(keys, columns, **options)


@caught_by("test_ragged_keys_and_rows_are_rejected_and_change_nothing")
class FailsOnRaggedRows(MemoryStorage):
    def upsert(self, keys: npt.ArrayLike, rows: npt.ArrayLike, *parts: Any) -> EvictedRows:
        return super().upsert(keys, np.asarray(rows), *parts)


@caught_by("test_columns_that_are_not_a_range_are_rejected")
class RoundsColumns(MemoryStorage):
    def find(self, keys: npt.ArrayLike, columns: Any = None, **options: Any) -> FindResult:
        if columns is not None:
            columns = Columns(*(int(each) for each in columns))
        return super().find(keys, columns, **options)


@caught_by("test_scan_with_a_non_integer_chunk_size_is_rejected")
class RoundsChunks(MemoryStorage):
    def scan(self, chunk_rows: int = 65_536, *parts: Any) -> Iterator[ScanChunk]:
        return super().scan(int(chunk_rows), *parts)


@caught_by("test_evict_of_a_non_integer_count_is_rejected_and_removes_nothing")
class RoundsWhatItEvicts(MemoryStorage):
    def evict(self, count: int) -> EvictedRows:
        return super().evict(int(count))


@caught_by("test_read_only_out_is_rejected")
class WritesToReadOnlyMemory(MemoryStorage):
    def find(self, keys: npt.ArrayLike, *parts: Any, out: Rows | None = None) -> FindResult:
        if isinstance(out, np.ndarray) and out.shape == (np.size(keys), self.table.width):
            out.flags.writeable = True
        return super().find(keys, *parts, out=out)


@caught_by("test_out_that_does_not_match_is_rejected")
class ClearsOutBeforeItChecks(MemoryStorage):
    def find(self, keys: npt.ArrayLike, *parts: Any, out: Rows | None = None) -> FindResult:
        if out is not None:
            out[...] = 0
        return super().find(keys, *parts, out=out)


@caught_by("test_invalid_scores_are_rejected_and_change_nothing")
class TakesBadScores(MemoryStorage):
    def _check_scores(self, scores: npt.ArrayLike | None, count: int) -> Scores | None:
        try:
            return super()._check_scores(scores, count)
        except InvalidArgumentError:
            return None


@caught_by("test_evict_of_a_negative_count_is_rejected")
class EvictTakesNegativeCounts(MemoryStorage):
    def evict(self, count: int) -> EvictedRows:
        return super().evict(max(0, count))


@caught_by("test_undeclared_evict_is_rejected")
class EvictsInSecret(MemoryStorage):
    def evict(self, count: int) -> EvictedRows:
        self._check_open()
        return self._evict_impl(count)


@caught_by("test_scores_are_set_by_the_policy")
class TouchIgnoresScores(MemoryStorage):
    def touch(self, keys: npt.ArrayLike, scores: npt.ArrayLike | None = None) -> None:
        super().touch(keys)


@caught_by("test_unstored_scores_read_as_zero")
class KeepsScoresThatItDoesNotDeclare(MemoryStorage):
    def _score(self, key: int, given: int | None) -> int:
        return super()._score(key, given) or 5
