"""Bugs of the native twin."""

from __future__ import annotations

from sparring.storage.memory import MemoryStorage
from sparring.storage.native import export_storage

from .registry import caught_by


def _copy_of(storage: MemoryStorage) -> MemoryStorage:
    copy = MemoryStorage(storage.table, storage._options)
    copy._entries = storage._entries.copy()
    return copy


@caught_by("test_writes_through_the_native_twin_are_visible_in_the_storage")
class ExportsACopy(MemoryStorage):
    def __sparring_storage__(self) -> object:
        self._check_open()
        return export_storage(_copy_of(self))


@caught_by("test_native_twin_of_a_closed_python_storage_raises_closed_error")
class TwinOutlivesTheStorage(MemoryStorage):
    def __sparring_storage__(self) -> object:
        twin = _copy_of(self)
        twin._entries = self._entries
        return export_storage(twin)


@caught_by("test_native_twin_declares_what_the_storage_declares")
class TwinForgetsItsCapabilities(MemoryStorage):
    def __sparring_storage__(self) -> object:
        twin = _copy_of(self)
        twin.capabilities = type(twin.capabilities)()
        return export_storage(twin)
