"""The kernel set of the CPU, and the contract of kernel sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.device.kernels import ArraySource
from sparring.contracts.storage.updates import MethodChoice, UpdateMethod
from sparring.contracts.tables.hyperparameters import HyperParameters
from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring.kernels import functions as kernels
from sparring.plugins.registry import make_plugin_manager
from sparring.storage.open import open_storage
from sparring.updates.builtin import BUILTIN_METHODS

ARRAYS = ArraySource(empty=np.empty, stream=lambda: 0)


@pytest.fixture
def cpu() -> KernelSet:
    return make_plugin_manager(entry_points=False).kernels("cpu").factory(ARRAYS)


class _OnlyDlpack:
    """An array of a framework that NumPy does not support."""

    def __init__(self, array: Any, device: tuple[int, int] = (1, 0)) -> None:
        self._array = array
        self._device = device

    def __dlpack__(self, **given: Any) -> Any:
        return self._array.__dlpack__(**given)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def test_a_batch_passes_forward_and_backward_through_the_set(cpu: KernelSet) -> None:
    found = cpu.dedup(_OnlyDlpack(np.array([7, 3, 7, 9, 3])))
    assert found.keys.tolist() == [7, 3, 9]
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    offsets = np.array([0, 2, 5])
    bags = cpu.pool(_OnlyDlpack(rows), found.inverse, offsets)
    assert bags.tolist() == [[2, 4], [6, 9]]
    back = cpu.pool_backward(np.ones((2, 2), np.float32), found.inverse, offsets, 3)
    assert back.tolist() == [[2, 2], [2, 2], [1, 1]]
    assert cpu.gather(rows, found.inverse).tolist() == rows[found.inverse].tolist()


def test_memory_is_shared_not_copied(cpu: KernelSet) -> None:
    table = TableConfig("t", 2, initializer="zeros")
    rows = np.ones((2, 2), np.float32)
    found = np.array([True, False])
    cpu.initialize(_OnlyDlpack(rows), np.array([1, 2]), found, table)
    assert rows.tolist() == [[1, 1], [0, 0]]


def test_updates_equal_the_update_methods(cpu: KernelSet) -> None:
    method = BUILTIN_METHODS["rowwise_adagrad"]()
    hyper = method.hyperparameters(lr=0.5)
    table = TableConfig("t", 3, state_width=1)
    rows = np.ones((2, 4), np.float32)
    gradients = np.full((2, 3), 2.0, np.float32)
    cpu.update(table, MethodChoice(method, hyper, 1), np.array([4, 5]), rows, gradients)
    expected = 1 - 0.5 * 2 / (np.sqrt(5.0) + hyper.eps)
    np.testing.assert_allclose(rows, [[expected] * 3 + [5]] * 2, rtol=1e-6)


def test_a_method_of_a_plugin_is_rejected(cpu: KernelSet) -> None:
    class Mine(UpdateMethod):
        name = "mine"
        hyperparameters = HyperParameters

        def state_width(self, dim: int) -> int:
            return 0

        def update(self, rows: Any, hyper: HyperParameters) -> None:
            raise AssertionError

    choice = MethodChoice(Mine(), HyperParameters(lr=1.0), 1)
    with pytest.raises(UnsupportedError, match="update methods of core, found 'mine'"):
        cpu.update(
            TableConfig("t", 1), choice, np.array([1]), np.ones((1, 1), "f4"), np.ones((1, 1), "f4")
        )


def test_arrays_on_other_devices_are_rejected(cpu: KernelSet) -> None:
    with pytest.raises(InvalidArgumentError, match="ids must be in host memory"):
        cpu.dedup(_OnlyDlpack(np.array([1]), device=(2, 0)))
    with pytest.raises(
        InvalidArgumentError, match="ids must be an array with __dlpack__, found list"
    ):
        cpu.dedup([1])


def test_every_operation_of_sparring_kernels_is_in_the_contract() -> None:
    operations = {
        name
        for name in kernels.__all__
        if name.islower() and name not in ("initial_rows", "initializer_spec", "rounding_seed")
    } - {"set_simd_level", "simd_level"}
    assert operations <= set(KernelSet.__abstractmethods__)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8])
def test_rows_are_found_into_existing_arrays(cpu: KernelSet, dtype: Any) -> None:
    with open_storage("memory", TableConfig("t", 2)) as storage:
        storage.upsert([7], np.ones((1, 2), np.float32))
        rows, found = np.empty((2, 2), np.float32), np.full(2, 1, dtype)
        cpu.find_into(storage, np.array([5, 7]), rows, found)
    assert found.tolist() == [0, 1]
    assert rows.tolist() == [[0, 0], [1, 1]]
