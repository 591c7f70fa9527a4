"""The kit of core on tables of a device: over the emulator, or on the GPU that
``SPARRING_TEST_DEVICE`` names (``cuda``, ``cuda:1``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from sparring.errors import DeviceError
from sparring.table import TableConfig
from sparring.testing import StorageTests
from sparring_hkv import HkvOptions, HkvStorage
from sparring_hkv.devices import open_device

DEVICE = os.environ.get("SPARRING_TEST_DEVICE", "emulated")
POLICIES = ("none", "lru", "lfu", "epoch_lru", "epoch_lfu", "custom")

try:
    open_device(DEVICE.partition(":")[0], int(DEVICE.partition(":")[2] or 0))
except DeviceError as error:
    pytest.skip(str(error), allow_module_level=True)


class TestHkvOnADevice(StorageTests):
    """The defaults: a table that grows and keeps no scores."""

    bounded_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        policy: {"capacity": 480, "policy": policy} for policy in POLICIES
    }

    @pytest.fixture
    def make_storage(self) -> Callable[..., HkvStorage]:
        def make(table: TableConfig, **options: Any) -> HkvStorage:
            return HkvStorage(table, HkvOptions(**{"device": DEVICE, **options}))

        return make


class TestHkvOnADeviceWithScores(StorageTests):
    """A table that grows and keeps the caller's scores; bounds are in bytes, and rows beyond a
    small budget lie in pinned memory."""

    bounded_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        policy: {"memory_bytes": 60_000, "policy": policy} for policy in POLICIES
    }

    @pytest.fixture
    def make_storage(self) -> Callable[..., HkvStorage]:
        def make(table: TableConfig, **options: Any) -> HkvStorage:
            given = {"device": DEVICE, "policy": "custom", "device_memory_bytes": 50_000}
            return HkvStorage(table, HkvOptions(**{**given, **options}))

        return make
