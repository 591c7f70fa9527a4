"""Bugs of the native handle that updates of rows meet."""

from __future__ import annotations

from typing import ClassVar

from sparring.contracts.storage.results import Columns, EvictedRows, Keys, Rows, Scores
from sparring.storage.memory import MemoryStorage
from sparring.storage.native import export_storage

from .registry import Found, caught_by


class _ExportsAnother(MemoryStorage):
    """Has the native handle of another class over the same rows."""

    exported: ClassVar[type[MemoryStorage]]

    def __sparring_storage__(self) -> object:
        other = self.exported(self.table, self._options)
        other._entries = self._entries
        return export_storage(other)


class _ForgetsTheLastKey(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        return super()._upsert_impl(keys[:-1], rows[:-1], scores)


class _ChangesManyTwice(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        if len(keys) > 100:
            rows = 2 * rows - self.find(keys).rows
        return super()._upsert_impl(keys, rows, scores)


class _FindsAllKeys(MemoryStorage):
    def _find_impl(self, keys: Keys, columns: Columns, rows: Rows, found: Found) -> None:
        super()._find_impl(keys, columns, rows, found)
        found[:] = True


@caught_by("test_update_equals_find_and_upsert")
class UpdateForgetsTheLastKey(_ExportsAnother):
    exported = _ForgetsTheLastKey


@caught_by("test_update_of_many_keys_changes_each_once")
class UpdatesTwiceWhereThereIsMuchToDo(_ExportsAnother):
    exported = _ChangesManyTwice


@caught_by("test_new_keys_of_an_update_start_from_their_initial_row")
class NewKeysStartFromZeros(_ExportsAnother):
    exported = _FindsAllKeys
