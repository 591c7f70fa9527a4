"""Random sequences of calls give the same tables on a device as on the CPU, where nothing leaves.

``SPARRING_OPERATIONS`` sets how many calls; ``SPARRING_TEST_DEVICE`` which device. Tables that evict
are compared with a model in ``native/device_table/device_sequence_test.cc``.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from sparring.errors import DeviceError
from sparring.table import TableConfig
from sparring.testing.devices import named_device
from sparring_hkv import HkvOptions, HkvStorage
from sparring_hkv.devices import open_device

DEVICE = named_device()
NUM_OPERATIONS = int(os.environ.get("SPARRING_OPERATIONS", "300"))
EXTREMES = np.array([-(2**63), -1, 0, 2**63 - 1])

try:
    open_device(DEVICE.partition(":")[0], int(DEVICE.partition(":")[2] or 0))
except DeviceError as error:
    pytest.skip(str(error), allow_module_level=True)


def draw_keys(rng: np.random.Generator) -> np.ndarray:
    drawn = rng.integers(-2000, 2000, rng.integers(0, 200)) * 0x1234567
    return rng.permutation(np.union1d(drawn, rng.choice(EXTREMES, rng.integers(0, 3))))


def contents(storage: HkvStorage) -> dict[int, tuple[bytes, int]]:
    return {
        int(key): (row.tobytes(), int(score))
        for chunk in storage.scan(777)
        for key, row, score in zip(chunk.keys, chunk.rows, chunk.scores, strict=True)
    }


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
            assert contents(cpu) == contents(device)
    assert contents(cpu) == contents(device)
