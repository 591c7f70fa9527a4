"""Runs core's kit on growing tables, on bounded ones of each policy, and on tables with scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from sparring.contracts import TableConfig
from sparring_hkv.backend import HkvStorage
from sparring_hkv.estimate import estimate_hkv_bytes
from sparring_hkv.options import HkvOptions
from sparring_testing.storages.storage_tests import StorageTests

POLICIES = ("none", "lru", "lfu", "epoch_lru", "epoch_lfu", "custom")

# With 480 rows, one run in some thousands has such uneven buckets that more protected rows are
# evicted than the kit allows.
_CAPACITIES = {"lru": 960}


class TestHkv(StorageTests):
    """The defaults: a table that grows and keeps no scores."""

    repeats_are_slow = True
    bounded_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        policy: {"capacity": _CAPACITIES.get(policy, 480), "policy": policy} for policy in POLICIES
    }

    @pytest.fixture
    def make_storage(self) -> Callable[..., HkvStorage]:
        def make(table: TableConfig, **options: Any) -> HkvStorage:
            return HkvStorage(table, HkvOptions(**options))

        return make

    @pytest.fixture
    def estimate(self) -> Any:
        return lambda storage, rows: estimate_hkv_bytes(storage.table, storage.options, rows)


class TestHkvWithScores(StorageTests):
    """A table that grows and keeps the caller's scores; bounds are in bytes."""

    repeats_are_slow = True
    bounded_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        policy: {"memory_bytes": 60_000, "policy": policy} for policy in POLICIES
    }

    @pytest.fixture
    def make_storage(self) -> Callable[..., HkvStorage]:
        def make(table: TableConfig, **options: Any) -> HkvStorage:
            return HkvStorage(table, HkvOptions(**{"policy": "custom", **options}))

        return make

    @pytest.fixture
    def estimate(self) -> Any:
        return lambda storage, rows: estimate_hkv_bytes(storage.table, storage.options, rows)
