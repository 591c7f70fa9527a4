"""The kit across the native border: `memory`, exported as a capsule and wrapped again."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from sparring.storage.contract import Storage
from sparring.storage.memory import MemoryOptions, MemoryStorage
from sparring.storage.native import NativeStorage
from sparring.table import TableConfig
from sparring.testing import StorageTests
from sparring.testing.samples import MakeStorage


class TestMemoryThroughTheNativeBorder(StorageTests):
    bounded_options: ClassVar[Any] = {
        policy: {"capacity": 256, "policy": policy} for policy in ("none", "lru", "lfu", "custom")
    }

    @pytest.fixture
    def make_storage(self) -> MakeStorage:
        def make(table: TableConfig, **options: Any) -> Storage:
            inner = MemoryStorage(table, MemoryOptions(**options))
            return NativeStorage(inner.__sparring_storage__(), table)

        return make
