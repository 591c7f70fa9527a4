"""Bugs of `erase`, `clear`, `flush` and `size`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from sparring.contracts.storage.results import EvictedRows, Keys, Rows, Scores
from sparring.contracts.storage.storage import Storage
from sparring.storage.memory import MemoryStorage

from .registry import caught_by, put


@caught_by("test_erase_of_unknown_keys_is_not_an_error_and_counts_none")
class EraseCountsAll(MemoryStorage):
    def _erase_impl(self, keys: Keys) -> int:
        super()._erase_impl(keys)
        return len(keys)


@caught_by("test_erase_removes_the_named_keys_only")
class EraseTakesOneMore(MemoryStorage):
    def _erase_impl(self, keys: Keys) -> int:
        count = super()._erase_impl(keys)
        if count > 20 and self._entries:
            self._entries.popitem()
        return count


@caught_by("test_erased_key_may_be_inserted_again")
class EraseIsForEver(MemoryStorage):
    def _erase_impl(self, keys: Keys) -> int:
        self._gone = getattr(self, "_gone", set()) | set(keys.tolist())
        return super()._erase_impl(keys)

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        gone = getattr(self, "_gone", set())
        stays = np.array([key not in gone for key in keys.tolist()])
        return put(self, keys[stays], rows[stays])


@caught_by("test_clear_removes_all_rows_and_the_storage_stays_usable")
class ClearLeavesARow(MemoryStorage):
    def _clear_impl(self) -> None:
        kept = next(iter(self._entries.items()))
        super()._clear_impl()
        self._entries.update([kept])


@caught_by("test_size_counts_rows")
class SizeCountsUpserts(MemoryStorage):
    _num_upserted = 0

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        self._num_upserted += len(keys)
        return put(self, keys, rows)

    def _size_impl(self) -> int:
        return self._num_upserted


@caught_by("test_flush_changes_nothing")
class FlushForgets(MemoryStorage):
    def _flush_impl(self) -> None:
        self._entries.clear()


@caught_by("test_tables_of_two_storages_are_separate")
class AllStoragesShareOneTable(MemoryStorage):
    _shared: ClassVar[dict[str, Any]] = {}
    _opened: ClassVar[list[Storage]] = []

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        if not any(not storage.is_closed for storage in self._opened):
            self._shared.clear()
        self._opened.append(self)
        self._entries = self._shared


@caught_by("test_random_operations_agree_with_a_dict")
class FlushBringsErasedRowsBack(MemoryStorage):
    """A bug that takes three operations to show."""

    def _erase_impl(self, keys: Keys) -> int:
        self._before = dict(self._entries)
        return super()._erase_impl(keys)

    def _flush_impl(self) -> None:
        self._entries.update(getattr(self, "_before", {}))
