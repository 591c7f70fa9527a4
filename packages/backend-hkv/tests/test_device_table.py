"""Tables on a device: by host arrays, and by kernels straight from the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparring import make_plugin_manager, update_rows
from sparring.adapter import BUILTIN_METHODS
from sparring.contracts import ArraySource, KernelSet, MethodChoice, TableConfig
from sparring.errors import (
    CapacityError,
    DeviceError,
    InvalidArgumentError,
    UnsupportedError,
)
from sparring.kernels.cpu import CpuKernels
from sparring_hkv.backend import HkvStorage
from sparring_hkv.options import HkvOptions

METHOD = BUILTIN_METHODS["rowwise_adagrad"]()
HYPER = METHOD.hyperparameters(lr=0.1)


def _opened(
    place: str, dtype: str = "float32", dim: int = 12, **options: Any
) -> tuple[HkvStorage, HkvStorage]:
    """The same table on the device and on the CPU."""
    table = TableConfig("t", dim, dtype=dtype, seed=3).with_state(1, METHOD.name)
    return (
        HkvStorage(table, HkvOptions(device=place, **options)),
        HkvStorage(table, HkvOptions(**options)),
    )


SHORT = {("float32", 12), ("float32", 63), ("float64", 5), ("bfloat16", 63)}


@pytest.mark.parametrize(
    ("dtype", "mode", "dim"),
    [
        pytest.param(dtype, mode, dim, marks=[] if (dtype, dim) in SHORT else pytest.mark.long)
        for dtype in ("float32", "float64", "bfloat16")
        for mode, dim in (("sum", 12), ("mean", 5), ("mean", 63))
    ],
)
def test_training_on_a_device_gives_the_rows_of_the_cpu(
    device: KernelSet,
    table_place: str,
    shuffle: Callable[..., None],
    dtype: str,
    mode: Any,
    dim: int,
) -> None:
    generator = np.random.default_rng(7)
    on_device, on_cpu = _opened(table_place, dtype, dim)
    table, cpu = on_cpu.table, CpuKernels()
    state = METHOD.initial_state(table.dim, HYPER, table.computing_dtype)
    for step in range(1, 6):
        shuffle(step)
        ids = generator.zipf(1.2, 400) % 1000 - 30 * step
        offsets = np.concatenate([[0], np.sort(generator.integers(0, 401, 99)), [400]])
        weights = generator.normal(size=400).astype(table.computing_dtype)
        bags = device.pool_storage(on_device, table, ids, offsets, mode=mode, weights=weights)
        expected = cpu.pool_storage(on_cpu, table, ids, offsets, mode=mode, weights=weights)
        assert bags.tobytes() == expected.tobytes()
        found = device.dedup(ids)
        gradient = np.tanh(bags)
        sums = device.pool_backward(gradient, found.inverse, offsets, len(found.keys), mode=mode)
        choice = MethodChoice(METHOD, HYPER, step)
        size = on_cpu.size
        update_rows(on_cpu, found.keys, sums.copy(), choice)
        change = device.update_storage(on_device, choice, found.keys, sums, state)
        assert change.num_new == on_cpu.size - size
        assert change.evicted.count == 0
    assert on_device.size == on_cpu.size
    keys = np.arange(-200, 1100)
    ours, theirs = on_device.find(keys), on_cpu.find(keys)
    assert ours.found.tolist() == theirs.found.tolist()
    assert ours.rows.tobytes() == theirs.rows.tobytes()


def test_a_table_without_rows_shows_initial_values(device: KernelSet, table_place: str) -> None:
    on_device, on_cpu = _opened(table_place)
    ids, offsets = np.array([5, -1, 5, 2**62]), np.array([0, 1, 1, 4])
    expected = CpuKernels().pool_storage(None, on_cpu.table, ids, offsets)
    for storage in (None, on_device):
        assert np.array_equal(device.pool_storage(storage, on_cpu.table, ids, offsets), expected)
    nothing = np.empty(0, np.int64)
    empty = device.pool_storage(on_device, on_cpu.table, nothing, np.zeros(3, np.int64))
    assert empty.tolist() == np.zeros((2, 12)).tolist()


def test_reading_does_not_wait(emulated: Any) -> None:
    device = (
        make_plugin_manager()
        .kernels("emulated")
        .factory(ArraySource(empty=np.empty, stream=lambda: 0))
    )
    table_place = "emulated"
    on_device, _ = _opened(table_place)
    ids, offsets = np.arange(50), np.arange(51)
    before = emulated.num_waits()
    device.pool_storage(on_device, on_device.table, ids, offsets)
    assert emulated.num_waits() == before


def test_a_full_table_raises_and_is_unchanged(device: KernelSet, table_place: str) -> None:
    on_device, _ = _opened(table_place, capacity=10)
    choice = MethodChoice(METHOD, HYPER, 1)
    gradients = np.ones((8, 12), np.float32)
    change = device.update_storage(on_device, choice, np.arange(8), gradients.copy(), None)
    assert change.num_new == 8
    before = on_device.find(np.arange(20))
    with pytest.raises(CapacityError):
        device.update_storage(on_device, choice, np.arange(6, 14), gradients.copy(), None)
    after = on_device.find(np.arange(20))
    assert before.rows.tobytes() == after.rows.tobytes()
    assert before.found.tolist() == after.found.tolist()


def test_a_table_on_another_device_is_rejected(device: KernelSet, table_place: str) -> None:
    _, on_cpu = _opened(table_place)
    with pytest.raises(UnsupportedError, match="'t' is on cpu, but these kernels run on "):
        device.pool_storage(on_cpu, on_cpu.table, np.arange(3), np.arange(4))


def test_options_name_a_device() -> None:
    assert HkvOptions(device="cuda:1").device == "cuda:1"
    with pytest.raises(ValueError, match="device"):
        HkvOptions(device="gpu")
    with pytest.raises(ValueError, match="device_memory_bytes limits the memory of a GPU"):
        HkvOptions(device_memory_bytes=1000)


def test_a_missing_gpu_is_reported() -> None:
    from sparring_hkv.devices import why_cuda_is_unavailable

    if why_cuda_is_unavailable() is None:
        pytest.skip("there is a GPU here")
    with pytest.raises(DeviceError, match=r"cuda"):
        HkvStorage(TableConfig("t", 4), HkvOptions(device="cuda"))


def test_ids_beyond_a_table_are_rejected_by_shape(device: KernelSet, table_place: str) -> None:
    on_device, _ = _opened(table_place)
    with pytest.raises(InvalidArgumentError, match="offsets"):
        device.pool_storage(on_device, on_device.table, np.arange(3), np.zeros((2, 2), np.int64))
