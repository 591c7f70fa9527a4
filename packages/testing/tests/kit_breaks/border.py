"""Bugs of the native handle."""

from __future__ import annotations

from sparring.contracts.storage.results import Columns, EvictedRows, Keys, Rows, Scores
from sparring.storage.memory import MemoryStorage
from sparring.storage.native import export_storage

from .registry import Found, caught_by


def _copy_of(storage: MemoryStorage) -> MemoryStorage:
    copy = MemoryStorage(storage.table, storage._options)
    copy._entries = storage._entries.copy()
    return copy


@caught_by("test_writes_through_the_native_handle_are_visible_in_the_storage")
class ExportsACopy(MemoryStorage):
    def __sparring_storage__(self) -> object:
        self._check_open()
        return export_storage(_copy_of(self))


@caught_by("test_native_handle_of_a_closed_python_storage_raises_closed_error")
class HandleOutlivesTheStorage(MemoryStorage):
    def __sparring_storage__(self) -> object:
        other = _copy_of(self)
        other._entries = self._entries
        return export_storage(other)


@caught_by("test_native_handle_has_the_capabilities_of_the_storage")
class HandleForgetsItsCapabilities(MemoryStorage):
    def __sparring_storage__(self) -> object:
        other = _copy_of(self)
        other.capabilities = type(other.capabilities)()
        return export_storage(other)


class _CutsColumns(MemoryStorage):
    def _find_impl(self, keys: Keys, columns: Columns, rows: Rows, found: Found) -> None:
        super()._find_impl(keys, Columns(0, columns.end - columns.begin), rows, found)


class _DropsEvicted(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        super()._upsert_impl(keys, rows, scores)
        return self._nothing_evicted()


@caught_by("test_reads_through_the_native_handle_agree_with_the_storage")
class HandleCutsColumns(MemoryStorage):
    def __sparring_storage__(self) -> object:
        other = _CutsColumns(self.table, self._options)
        other._entries = self._entries
        return export_storage(other)


@caught_by("test_native_handle_of_a_bounded_storage_returns_evicted_rows")
class HandleDropsEvicted(MemoryStorage):
    def __sparring_storage__(self) -> object:
        other = _DropsEvicted(self.table, self._options)
        other._entries = self._entries
        return export_storage(other)
