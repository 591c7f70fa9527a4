"""The kit across the native border: `memory`, exported as a capsule and wrapped again."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.storage.memory import MemoryOptions, MemoryStorage
from sparring.storage.native import NativeStorage, get_capsule
from sparring_testing.references.samples import MakeStorage
from sparring_testing.storages.storage_tests import StorageTests


class TestMemoryThroughTheNativeBorder(StorageTests):
    repeats_are_slow = True
    bounded_options: ClassVar[Any] = {
        policy: {"capacity": 256, "policy": policy} for policy in ("none", "lru", "lfu", "custom")
    }

    @pytest.fixture
    def make_storage(self) -> MakeStorage:
        def make(table: TableConfig, **options: Any) -> Storage:
            inner = MemoryStorage(table, MemoryOptions(**options))
            return NativeStorage(get_capsule(inner), table)

        return make
