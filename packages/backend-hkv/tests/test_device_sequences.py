"""Random sequences of calls give the same tables on a device as on the CPU, without evictions.

``SPARRING_OPERATIONS`` sets the number of calls, ``SPARRING_TEST_DEVICE`` the device. Tables that evict
are compared with a model in ``native/device_table/device_sequence_test.cc``.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from sparring.adapter import BUILTIN_METHODS
from sparring.contracts import MethodChoice, TableConfig
from sparring.errors import DeviceError
from sparring.kernels.cpu import CpuKernels
from sparring_hkv.backend import HkvStorage
from sparring_hkv.devices import open_device
from sparring_hkv.options import HkvOptions
from sparring_testing.devices import get_test_device
from sparring_testing.processes.table_steps import read_chunks

DEVICE = get_test_device()
NUM_OPERATIONS = int(os.environ.get("SPARRING_OPERATIONS", "300"))
EXTREMES = np.array([-(2**63), -1, 0, 2**63 - 1])

try:
    open_device(DEVICE.partition(":")[0], int(DEVICE.partition(":")[2] or 0))
except DeviceError as error:
    pytest.skip(str(error), allow_module_level=True)


def draw_keys(rng: np.random.Generator) -> np.ndarray:
    drawn = rng.integers(-2000, 2000, rng.integers(0, 200)) * 0x1234567
    return rng.permutation(np.union1d(drawn, rng.choice(EXTREMES, rng.integers(0, 3))))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("policy", ["none", "lfu"])
def test_the_same_calls_give_the_same_tables(policy: str, dtype: str) -> None:
    seed = 5
    rng = np.random.default_rng(seed)
    table = TableConfig("table", 5, dtype=dtype)
    cpu = HkvStorage(table, HkvOptions(policy=policy))
    device = HkvStorage(
        table, HkvOptions(policy=policy, device=DEVICE, device_memory_bytes=200_000)
    )
    for turn in range(NUM_OPERATIONS // 6):
        keys = draw_keys(rng)
        kind = rng.integers(0, 10)
        if kind < 4:
            rows = rng.random((len(keys), table.width), np.float32).astype(table.numpy_dtype)
            for storage in (cpu, device):
                storage.upsert(keys, rows)
        elif kind < 7:
            expected, found = cpu.find(keys), device.find(keys)
            assert np.array_equal(expected.found, found.found)
            assert expected.rows.tobytes() == found.rows.tobytes()
        elif kind < 9 or policy == "none":
            assert cpu.erase(keys) == device.erase(keys)
        else:
            for storage in (cpu, device):
                storage.touch(keys)
            expected_left, left = cpu.evict(9), device.evict(9)
            assert np.array_equal(expected_left.keys, left.keys)
            assert expected_left.rows.tobytes() == left.rows.tobytes()
        if turn % 50 == 49:
            assert read_chunks(cpu.scan(777)) == read_chunks(device.scan(777))
    assert read_chunks(cpu.scan(777)) == read_chunks(device.scan(777))


class Pair:
    """A table on the CPU and one on the device, with the same calls on their own arrays."""

    def __init__(self, kernels: Any) -> None:
        self._method = BUILTIN_METHODS["rowwise_adagrad"]()
        self._table = TableConfig("table", 5, seed=3).with_state(1, self._method.name)
        self._kernels = (CpuKernels(), kernels)
        # Chunks in pinned memory, too.
        on_device = HkvOptions(policy="lfu", device=DEVICE, device_memory_bytes=200_000)
        self._storages = (
            HkvStorage(self._table, HkvOptions(policy="lfu")),
            HkvStorage(self._table, on_device),
        )
        self._step = 0

    @property
    def storages(self) -> tuple[HkvStorage, HkvStorage]:
        return self._storages

    def both(self, name: str, *arguments: Any, **named: Any) -> tuple[Any, Any]:
        """What that operation of both sets gives, on the table of each; its arrays may be changed."""
        results = []
        for kernels, storage in zip(self._kernels, self._storages, strict=True):
            given = [each.copy() if isinstance(each, np.ndarray) else each for each in arguments]
            results.append(getattr(kernels, name)(storage, *given, **named))
        return results[0], results[1]

    def find(self, keys: np.ndarray) -> None:
        expected, found = self.both("find_storage", keys)
        assert np.array_equal(expected.found, found.found)
        assert expected.rows.tobytes() == found.rows.tobytes()

    def upsert(self, keys: np.ndarray, rng: np.random.Generator) -> None:
        self.both("upsert_storage", keys, rng.random((len(keys), self._table.width), np.float32))

    def update(self, keys: np.ndarray, rng: np.random.Generator) -> None:
        self._step += 1
        choice = MethodChoice(self._method, self._method.hyperparameters(lr=0.1), self._step)
        gradients = rng.standard_normal((len(keys), self._table.dim), np.float32)
        expected, change = self.both("update_storage", choice, keys, gradients, None)
        assert change.num_new == expected.num_new

    def pool(self, keys: np.ndarray, rng: np.random.Generator) -> None:
        if len(keys) == 0:
            return
        ids = rng.choice(keys, 2 * len(keys))
        offsets = np.union1d([0, len(ids)], rng.integers(0, len(ids), 20))
        mode = ("sum", "mean")[rng.integers(2)]
        expected, bags = self.both("pool_storage", self._table, ids, offsets, mode=mode)
        assert expected.tobytes() == bags.tobytes()

    def erase(self, keys: np.ndarray) -> None:
        expected, erased = (storage.erase(keys) for storage in self._storages)
        assert erased == expected


def test_calls_with_arrays_of_the_device_give_the_same_table(named_kernels: Any) -> None:
    """Runs one sequence of the requested length, with arrays of the GPU if it runs on one."""
    rng = np.random.default_rng(11)
    pair = Pair(named_kernels)
    for turn in range(NUM_OPERATIONS):
        keys = draw_keys(rng)
        kind = rng.integers(0, 10)
        if kind < 3:
            pair.update(keys, rng)
        elif kind < 5:
            pair.upsert(keys, rng)
        elif kind < 7:
            pair.find(keys)
        elif kind < 9:
            pair.pool(keys, rng)
        else:
            pair.erase(keys)
        if turn % 1000 == 999:
            assert read_chunks(pair.storages[0].scan(777)) == read_chunks(
                pair.storages[1].scan(777)
            )
    assert read_chunks(pair.storages[0].scan(777)) == read_chunks(pair.storages[1].scan(777))
    assert pair.storages[0].size > 0
