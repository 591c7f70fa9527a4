"""Memory of ``hkv`` tables for ordinary keys and for keys that were chosen to collide."""

from __future__ import annotations

import time

import numpy as np
import pytest

from sparring.contracts import TableConfig
from sparring.errors import CapacityError
from sparring_hkv.backend import HkvStorage
from sparring_hkv.options import HkvOptions


def keys_of_hashes(hashes: np.ndarray) -> np.ndarray:
    """The keys that SplitMix64's finaliser maps to these hashes: the function backwards."""

    def undo_shift(x: np.ndarray, shift: int) -> np.ndarray:
        result = x.copy()
        for _ in range(64 // shift):
            result = x ^ (result >> np.uint64(shift))
        return result

    inverse = [pow(factor, -1, 2**64) for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)]
    x = undo_shift(hashes, 31) * np.uint64(inverse[1])
    x = undo_shift(x, 27) * np.uint64(inverse[0])
    x = undo_shift(x, 30) - np.uint64(0x9E3779B97F4A7C15)
    return x.view(np.int64)


def test_tiny_table_is_tiny() -> None:
    storage = HkvStorage(TableConfig("table", 64))
    storage.upsert(np.arange(10), np.zeros((10, 64), np.float32))
    assert storage.memory_bytes < 32_768


def test_growing_table_stays_near_its_payload() -> None:
    storage = HkvStorage(TableConfig("table", 64), validate=False)
    rows = np.zeros((8192, 64), np.float32)
    for begin in range(0, 50 * 8192, 8192):
        storage.upsert(np.arange(begin, begin + 8192), rows)
        payload = storage.size * (8 + 256)
        assert storage.memory_bytes <= 1.25 * payload + (4 << 20)


@pytest.mark.parametrize("policy", ["none", "lru", "custom"])
@pytest.mark.parametrize("dim", [1, 64, 1024])
def test_memory_bound_is_never_exceeded(policy: str, dim: int) -> None:
    bound = 3_000_000
    storage = HkvStorage(TableConfig("table", dim), HkvOptions(memory_bytes=bound, policy=policy))
    assert storage.capacity is not None
    assert storage.capacity * (8 + 4 * dim) > bound / 8
    for begin in range(0, 2 * storage.capacity, 97):
        keys = np.arange(begin, begin + 97)
        try:
            storage.upsert(keys, np.zeros((97, dim), np.float32))
        except CapacityError:
            assert policy == "none"
        assert storage.memory_bytes <= bound
    assert storage.size > storage.capacity / 2


def test_keys_chosen_to_collide_cost_time_but_no_memory() -> None:
    count = 20_000
    hashes = (np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B1)) & np.uint64(2**24 - 1)
    keys = keys_of_hashes(hashes | np.uint64(0xABCDE << 44))
    storage = HkvStorage(TableConfig("table", 1))
    start = time.perf_counter()
    for part in np.array_split(keys, 20):
        storage.upsert(part, part.astype(np.float32)[:, None])
    assert time.perf_counter() - start < 20
    assert storage.memory_bytes < 100 * count
    assert np.array_equal(storage.find(keys).rows[:, 0], keys.astype(np.float32))
    assert not storage.find(keys[:100] + 1).found.any()


def test_secret_seed_scatters_keys_that_were_chosen_to_collide() -> None:
    count = 20_000
    hashes = np.arange(count, dtype=np.uint64) | np.uint64(0xABCDE << 44)
    keys = keys_of_hashes(hashes)
    rows = keys.astype(np.float32)[:, None]
    seconds = {}
    for seed in (0, 0x5EED_5EED_5EED_5EED):
        storage = HkvStorage(TableConfig("table", 1), HkvOptions(hash_seed=seed))
        start = time.perf_counter()
        for part, part_rows in zip(np.array_split(keys, 20), np.array_split(rows, 20), strict=True):
            storage.upsert(part, part_rows)
        seconds[seed] = time.perf_counter() - start
        assert storage.find(keys).found.all()
    assert seconds[0x5EED_5EED_5EED_5EED] < seconds[0]
