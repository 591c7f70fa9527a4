"""Runs the kit on the `memory` storage, and tests its other properties."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.plugins.registry import make_plugin_manager
from sparring.storage.memory import MemoryOptions, MemoryStorage
from sparring_testing.references.samples import MakeStorage
from sparring_testing.storages.storage_tests import StorageTests


class TestMemoryStorage(StorageTests):
    bounded_options: ClassVar[Any] = {
        policy: {"capacity": 256, "policy": policy} for policy in ("none", "lru", "lfu", "custom")
    }

    @pytest.fixture
    def make_storage(self) -> MakeStorage:
        def make(table: TableConfig, **options: Any) -> Storage:
            return MemoryStorage(table, MemoryOptions(**options))

        return make

    @pytest.fixture
    def estimate(self) -> Any:
        descriptor = make_plugin_manager().storage("memory")
        return lambda storage, rows: descriptor.estimate_bytes(storage.table, MemoryOptions(), rows)
