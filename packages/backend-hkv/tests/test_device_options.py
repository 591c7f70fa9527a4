"""Options of tables on a device, and the errors if there is no device."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import sparring
from sparring.contracts import TableConfig
from sparring.errors import DeviceError, DeviceMemoryError, InvalidArgumentError
from sparring_hkv.backend import HkvStorage
from sparring_hkv.device_calls import DeviceCalls
from sparring_hkv.devices import why_cuda_is_unavailable
from sparring_hkv.options import HkvOptions

TABLE = TableConfig("table", 4)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA", "cpu:0", ""])
def test_devices_that_do_not_exist_are_rejected(device: str) -> None:
    with pytest.raises(InvalidArgumentError, match="device"):
        sparring.open_storage("hkv", TABLE, device=device)


def test_a_budget_of_a_gpu_needs_a_gpu() -> None:
    with pytest.raises(
        InvalidArgumentError, match="device_memory_bytes limits the memory of a GPU"
    ):
        sparring.open_storage("hkv", TABLE, device_memory_bytes=1_000_000)


def test_numbers_of_devices_are_read() -> None:
    options = HkvOptions(device="cuda:3")
    assert (options.device_kind, options.device_number) == ("cuda", 3)
    assert HkvOptions(device="cuda").device_number == 0


def test_without_a_gpu_the_reason_is_reported() -> None:
    reason = why_cuda_is_unavailable()
    if reason is None:
        pytest.skip("there is a GPU here")
    with pytest.raises(DeviceError) as raised:
        HkvStorage(TABLE, HkvOptions(device="cuda"))
    assert reason in str(raised.value)


def test_the_module_of_gpus_imports_without_a_driver() -> None:
    try:
        cuda = importlib.import_module("sparring_hkv._cuda")
    except ModuleNotFoundError:
        pytest.skip("sparring-hkv was built without nvcc")
    reason = cuda.unavailable()
    assert reason is None or reason.startswith("no GPU: ")


def test_a_table_that_does_not_fit_reports_requested_and_free_bytes(emulated: Any) -> None:
    device = emulated.Device(0, 100_000)
    with pytest.raises(DeviceMemoryError) as raised:
        emulated.create_table(
            device,
            row_bytes=1024,
            capacity=10_000,
            memory_bytes=None,
            policy="lru",
            hash_seed=0,
            device_memory_bytes=None,
        )
    assert raised.value.asked_bytes > raised.value.free_bytes


@pytest.mark.usefixtures("emulated")
def test_full_tables_of_a_device_evict_within_their_buckets() -> None:
    storage = HkvStorage(TABLE, HkvOptions(device="emulated", capacity=100, policy="lru"))
    for key in range(100):
        storage.upsert([key], np.full((1, 4), key, np.float32))
    storage.touch([0, 1])
    evicted = storage.upsert([100, 101], np.zeros((2, 4), np.float32))
    assert evicted.keys.tolist() == [2, 3]
    assert evicted.rows[:, 0].tolist() == [2, 3]


@pytest.mark.usefixtures("emulated")
def test_arrays_of_the_device_are_found_and_upserted() -> None:
    storage = HkvStorage(TABLE, HkvOptions(device="emulated"))
    calls = DeviceCalls(storage)
    keys = np.array([5, -1, 7])
    calls.upsert(keys, np.arange(12, dtype=np.float32).reshape(3, 4))
    rows, found = np.ones((4, 4), np.float32), np.zeros(4, np.uint8)
    calls.find(np.array([7, 8, 5, -1]), rows, found)
    assert found.tolist() == [1, 0, 1, 1]
    assert rows[:, 0].tolist() == [8, 0, 0, 4]
    with pytest.raises(InvalidArgumentError, match="16 bytes, found 12"):
        calls.upsert(keys, np.zeros((3, 3), np.float32))


def test_device_calls_need_a_device() -> None:
    with pytest.raises(InvalidArgumentError, match="is on the CPU"):
        DeviceCalls(HkvStorage(TABLE))
