"""Which rows are evicted from a full table of ``hkv``, and that no row is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.contracts import EvictedRows, TableConfig
from sparring.errors import CapacityError
from sparring_hkv.backend import HkvStorage
from sparring_hkv.options import HkvOptions

TABLE = TableConfig("table", 2)
EVICTING = ("lru", "lfu", "epoch_lru", "epoch_lfu", "custom")


def rows_of(keys: list[int], version: int) -> np.ndarray:
    return np.array([[key % 1000, version] for key in keys], np.float32).reshape(-1, 2)


def held_by(storage: HkvStorage) -> dict[int, tuple[float, ...]]:
    return {
        int(key): tuple(row)
        for chunk in storage.scan(100)
        for key, row in zip(chunk.keys, chunk.rows.tolist(), strict=True)
    }


@pytest.mark.parametrize("policy", EVICTING)
@settings(max_examples=40, deadline=None)
@given(
    capacity=st.integers(1, 150),
    calls=st.lists(
        st.lists(
            st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200), unique=True, max_size=90
        ),
        max_size=12,
    ),
)
def test_every_key_is_stored_or_was_returned_once_as_evicted(
    policy: str, capacity: int, calls: list[list[int]]
) -> None:
    expected: dict[int, tuple[float, ...]] = {}
    with HkvStorage(TABLE, HkvOptions(capacity=capacity, policy=policy)) as storage:
        for version, keys in enumerate(calls):
            rows = rows_of(keys, version)
            evicted = storage.upsert(keys, rows)
            expected.update(zip(keys, map(tuple, rows.tolist()), strict=True))
            for key, row in zip(evicted.keys.tolist(), evicted.rows.tolist(), strict=True):
                assert expected.pop(key) == tuple(row)
            assert storage.size <= capacity
            assert held_by(storage) == expected


def fill_one_by_one(storage: HkvStorage, keys: range) -> None:
    for key in keys:
        storage.upsert([key], rows_of([key], 0))


def leave(storage: HkvStorage, keys: list[int]) -> list[int]:
    evicted: EvictedRows = storage.upsert(keys, rows_of(keys, 1))
    return evicted.keys.tolist()


# A table of 40 rows is one bucket, so the order of evictions is exact.


def test_lru_evicts_the_least_recently_used_rows() -> None:
    storage = HkvStorage(TABLE, HkvOptions(capacity=40, policy="lru"))
    fill_one_by_one(storage, range(40))
    storage.touch([0, 1])
    storage.find([2, 3])
    assert leave(storage, [100, 101]) == [2, 3]


def test_lfu_evicts_the_least_frequently_used_rows() -> None:
    storage = HkvStorage(TABLE, HkvOptions(capacity=40, policy="lfu"))
    fill_one_by_one(storage, range(40))
    storage.touch(np.arange(10, 40))
    assert leave(storage, [100]) == [0]
    assert leave(storage, [-7]) == [-7], "the new row is itself the lowest"


@pytest.mark.parametrize("policy", ["epoch_lru", "epoch_lfu"])
def test_older_epochs_are_evicted_first(policy: str) -> None:
    storage = HkvStorage(TABLE, HkvOptions(capacity=40, policy=policy))
    fill_one_by_one(storage, range(20))
    storage.touch(np.arange(20))
    storage.set_option("epoch", 1)
    fill_one_by_one(storage, range(20, 40))
    assert sorted(leave(storage, list(range(100, 120)))) == list(range(20))


def test_among_equal_scores_the_smaller_key_is_evicted() -> None:
    storage = HkvStorage(TABLE, HkvOptions(capacity=40, policy="custom"))
    keys = list(range(-20, 20))
    storage.upsert(keys, rows_of(keys, 0), [5] * 40)
    assert storage.evict(4).keys.tolist() == [-20, -19, -18, -17]


def test_full_table_without_policy_rejects_whole_calls() -> None:
    storage = HkvStorage(TABLE, HkvOptions(capacity=100))
    keys = list(range(95))
    storage.upsert(keys, rows_of(keys, 0))
    before = held_by(storage)
    with pytest.raises(CapacityError, match=r"6 of them new: the table .* 95 of at most 100"):
        storage.upsert([1, *range(200, 206)], rows_of([1, *range(200, 206)], 1))
    assert held_by(storage) == before
