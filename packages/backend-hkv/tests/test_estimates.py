"""Estimates of tables by their options, in addition to the estimates of the kit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring.contracts import TableConfig
from sparring.errors import CapacityError, DeviceError
from sparring_hkv.backend import HkvStorage
from sparring_hkv.devices import open_device
from sparring_hkv.estimate import estimate_hkv_bytes
from sparring_hkv.options import HkvOptions


def opened(dim: int, num_rows: int, options: HkvOptions) -> HkvStorage:
    storage = HkvStorage(TableConfig("films", dim), options)
    for begin in range(0, num_rows, 4096):
        keys = np.arange(begin, min(begin + 4096, num_rows))
        storage.upsert(keys, np.zeros((len(keys), dim), np.float32))
    return storage


@pytest.mark.parametrize("dim", [2, 64])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"policy": "lru"},
        {"capacity": 60_000},
        {"capacity": 30_000, "policy": "lru"},
        {"memory_bytes": "4 MiB", "policy": "lfu"},
        {"memory_bytes": "32 MiB"},
    ],
)
def test_estimate_depends_on_the_options(dim: int, options: dict[str, Any]) -> None:
    checked = HkvOptions(**options)
    for num_rows in (20_000, 60_000):
        with opened(dim, num_rows, checked) as storage:
            told = estimate_hkv_bytes(storage.table, checked, num_rows)
            assert told["host"] == pytest.approx(storage.memory_bytes, rel=0.1)


@pytest.mark.parametrize(
    "options",
    [
        {"capacity": 30_000, "policy": "lru"},
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ({}, {"memory_bytes": "8 MiB"}, {"device_memory_bytes": "2 MiB"})
        ),
    ],
)
def test_estimate_of_a_device_depends_on_the_options(options: dict[str, Any]) -> None:
    try:
        open_device("emulated", 0)
    except DeviceError as error:
        pytest.skip(str(error))
    checked = HkvOptions(device="emulated", **options)
    with opened(16, 40_000, checked) as storage:
        told = estimate_hkv_bytes(storage.table, checked, 40_000)
        assert sum(told.values()) == pytest.approx(storage.memory_bytes, rel=0.1)
    if "device_memory_bytes" in options:
        assert told["gpu"] == 2 << 20
        assert told["host"] > 0
    else:
        assert told.keys() == {"gpu"}


def test_more_rows_than_a_table_can_number_are_rejected() -> None:
    table = TableConfig("films", 2)
    with pytest.raises(CapacityError, match="at most 4,294,967,295 rows"):
        estimate_hkv_bytes(table, HkvOptions(), 2**32)
    # A table that evicts stores as many rows as fit.
    bounded = HkvOptions(memory_bytes=1 << 30, policy="lru")
    assert estimate_hkv_bytes(table, bounded, 2**40)["host"] <= 1.01 * 2**30
