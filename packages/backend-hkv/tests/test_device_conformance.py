"""The kit of core on tables of a device: over the emulator, or on the GPU that
``SPARRING_TEST_DEVICE`` names (``cuda``, ``cuda:1``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from sparring.contracts import Storage, TableConfig
from sparring.errors import DeviceError
from sparring_hkv.backend import HkvStorage
from sparring_hkv.devices import open_device
from sparring_hkv.estimate import estimate_hkv_bytes
from sparring_hkv.options import HkvOptions
from sparring_testing.devices import get_test_device
from sparring_testing.guard import overrides_kit
from sparring_testing.storages.storage_tests import StorageTests

DEVICE = get_test_device()
POLICIES = ("none", "lru", "lfu", "epoch_lru", "epoch_lfu", "custom")

# With 480 rows, one run in some thousands has such uneven buckets that more protected rows are
# evicted than the kit allows.
_CAPACITIES = {"lru": 960}

try:
    open_device(DEVICE.partition(":")[0], int(DEVICE.partition(":")[2] or 0))
except DeviceError as error:
    pytest.skip(str(error), allow_module_level=True)


class DeviceTests(StorageTests):
    """Runs the kit without the tests for which an emulator is too slow."""

    __test__ = False
    repeats_are_slow = DEVICE == "emulated"

    @pytest.fixture
    def estimate(self) -> Any:
        return lambda storage, rows: estimate_hkv_bytes(storage.table, storage.options, rows)

    @pytest.mark.slow
    @overrides_kit(reason="on the emulator a call of a million rows takes half a minute")
    def test_call_of_a_million_rows(
        self, new_storage: Callable[..., Storage], rng: np.random.Generator
    ) -> None:
        if DEVICE != "emulated":
            super().test_call_of_a_million_rows(new_storage, rng)
            return
        storage = new_storage(TableConfig("table", 1))
        keys = np.arange(50_000, dtype=np.int64) * np.int64(0x1E3779B97F4A7C15)
        rows = rng.random((50_000, 1), np.float32)
        storage.upsert(keys, rows)
        assert np.array_equal(storage.find(keys[::-1]).rows, rows[::-1])
        assert sum(len(chunk) for chunk in storage.scan()) == storage.erase(keys) == 50_000


class TestHkvOnADevice(DeviceTests):
    """The defaults: a table that grows and keeps no scores."""

    __test__ = True
    bounded_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        policy: {"capacity": _CAPACITIES.get(policy, 480), "policy": policy} for policy in POLICIES
    }

    @pytest.fixture
    def make_storage(self) -> Callable[..., HkvStorage]:
        def make(table: TableConfig, **options: Any) -> HkvStorage:
            return HkvStorage(table, HkvOptions(**{"device": DEVICE, **options}))

        return make


# The emulator is slow, and the tests above run the same kernels.
@pytest.mark.slow
class TestHkvOnADeviceWithScores(DeviceTests):
    """A table that grows and keeps the caller's scores.

    Bounds are in bytes, and rows beyond a small budget are in pinned memory.
    """

    __test__ = True
    bounded_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        policy: {"memory_bytes": 60_000, "policy": policy} for policy in ("none", "lru")
    }

    @pytest.fixture
    def make_storage(self) -> Callable[..., HkvStorage]:
        def make(table: TableConfig, **options: Any) -> HkvStorage:
            given = {"device": DEVICE, "policy": "custom", "device_memory_bytes": 50_000}
            return HkvStorage(table, HkvOptions(**{**given, **options}))

        return make
