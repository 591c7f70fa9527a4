"""The kit of core on tables that lie on a device, over the emulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparring.table import TableConfig
from sparring.testing import StorageTests
from sparring_hkv import HkvOptions, HkvStorage

from . import test_conformance

pytest.importorskip(
    "sparring_hkv._emulated",
    reason="sparring-hkv was built without the emulator (-DSPARRING_HKV_EMULATED=ON)",
)


class TestHkvOnDevice(StorageTests):
    """A table that grows, by host arrays that are staged."""

    bounded_options = test_conformance.TestHkv.bounded_options

    @pytest.fixture
    def make_storage(self) -> Callable[..., HkvStorage]:
        def make(table: TableConfig, **options: Any) -> HkvStorage:
            return HkvStorage(table, HkvOptions(device="emulated", **options))

        return make
