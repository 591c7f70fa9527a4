"""Bugs of closing and reopening."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar

import numpy.typing as npt

from sparring.contracts.storage.results import Columns, EvictedRows, Keys, Rows, ScanChunk, Scores
from sparring.contracts.storage.storage import write_note
from sparring.errors import ClosedError
from sparring.storage.memory import MemoryStorage

from .registry import caught_by


@caught_by("test_every_call_after_close_raises_closed_error")
class StaysOpen(MemoryStorage):
    def erase(self, keys: npt.ArrayLike) -> int:
        return 0 if self.is_closed else super().erase(keys)


@caught_by("test_close_may_be_called_twice")
class ClosesOnce(MemoryStorage):
    def close(self) -> None:
        self._num_closed = getattr(self, "_num_closed", 0) + 1
        if self._num_closed == 2:
            raise ClosedError("closed already")
        super().close()


@caught_by("test_scan_in_progress_raises_when_the_storage_is_closed")
class ScanOutlivesTheStorage(MemoryStorage):
    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        yield from list(super()._scan_impl(chunk_rows, columns))


@caught_by("test_close_and_reopen_finds_the_written_rows")
class IsNotPersistent(MemoryStorage):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.capabilities = replace(self.capabilities, persistent=True)


@caught_by("test_close_and_reopen_after_clear_finds_nothing")
class ClearSparesTheDisk(MemoryStorage):
    """Persistent: `disk` contains the rows of a closed storage, and `reopen` finds them there."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.capabilities = replace(self.capabilities, persistent=True)
        self.disk: dict[int, Any] = {}

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        evicted = super()._upsert_impl(keys, rows, scores)
        self.disk.update(self._entries)
        return evicted


@caught_by("test_load_begins_without_rows_and_is_over_when_it_ends")
class LoadsOverOldRows(MemoryStorage):
    def _clear_for(self, source: str | None) -> None:
        if source is None:
            super()._clear_for(None)
        else:
            self._write_note("load", source)


@caught_by("test_notes_outlive_reopening")
class ForgetsNotesWhenClosed(MemoryStorage):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.capabilities = replace(self.capabilities, persistent=True, notes=True)


@caught_by("test_notes_outlive_clear")
class ForgetsNotesWhenCleared(MemoryStorage):
    def clear(self) -> None:
        super().clear()
        write_note(self, "colour", None)


@caught_by("test_incomplete_load_is_known_after_reopening")
class ForgetsLoads(MemoryStorage):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.capabilities = replace(self.capabilities, persistent=True, notes=True)


@caught_by("test_storage_that_is_not_persistent_opens_empty")
class RemembersTheLastStorage(MemoryStorage):
    _last: ClassVar[dict[int, Any]] = {}

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._entries.update(self._last)
        self._last.clear()

    def _close_impl(self) -> None:
        self._last.update(self._entries)


@caught_by("test_storage_closes_at_the_end_of_a_with_block")
class WithBlockLeavesItOpen(MemoryStorage):
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass
