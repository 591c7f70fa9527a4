"""Bugs of refusal, closing and declared capabilities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.errors import ClosedError
from sparring.storage.contract import (
    Capabilities,
    Columns,
    Evicted,
    ScanChunk,
)
from sparring.storage.memory import MemoryStorage

from .registry import caught_by


@caught_by("test_bad_keys_are_refused_and_change_nothing")
class RoundsFloatKeys(MemoryStorage):
    def upsert(self, keys: npt.ArrayLike, *parts: Any) -> Evicted:
        array = np.asarray(keys)
        return super().upsert(array.astype(np.int64) if array.dtype.kind == "f" else array, *parts)


@caught_by("test_duplicate_keys_are_refused_and_change_nothing")
class WritesBeforeItChecks(MemoryStorage):
    def upsert(self, keys: npt.ArrayLike, rows: npt.ArrayLike, *parts: Any) -> Evicted:
        if np.ndim(keys) == 1 and np.shape(rows) == (np.size(keys), self.table.width):
            for key, row in zip(np.asarray(keys), np.asarray(rows), strict=True):
                super().upsert([key], [row], *parts)
        return super().upsert(keys, rows, *parts)


@caught_by("test_rows_of_wrong_dtype_are_refused_and_change_nothing")
class ConvertsRows(MemoryStorage):
    def upsert(self, keys: npt.ArrayLike, rows: npt.ArrayLike, *parts: Any) -> Evicted:
        return super().upsert(keys, np.asarray(rows, self.table.numpy_dtype), *parts)


@caught_by("test_every_call_after_close_raises_closed_error")
class StaysOpen(MemoryStorage):
    def erase(self, keys: npt.ArrayLike) -> int:
        return 0 if self.is_closed else super().erase(keys)


@caught_by("test_close_twice_is_fine")
class ClosesOnce(MemoryStorage):
    def close(self) -> None:
        self._num_closed = getattr(self, "_num_closed", 0) + 1
        if self._num_closed == 2:
            raise ClosedError("closed already")
        super().close()


@caught_by("test_scan_under_way_raises_when_the_storage_is_closed")
class ScanOutlivesTheStorage(MemoryStorage):
    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        yield from list(super()._scan_impl(chunk_rows, columns))


@caught_by("test_close_and_reopen_finds_what_was_written")
class IsNotPersistent(MemoryStorage):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.capabilities = replace(self.capabilities, persistent=True)


@caught_by("test_touch_that_is_not_declared_is_refused")
class TouchesInSecret(MemoryStorage):
    def touch(self, keys: npt.ArrayLike, scores: npt.ArrayLike | None = None) -> None:
        self._check_open()


@caught_by("test_scores_that_are_not_taken_are_refused")
class IgnoresScores(MemoryStorage):
    def upsert(self, keys: npt.ArrayLike, rows: npt.ArrayLike, *parts: Any) -> Evicted:
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
