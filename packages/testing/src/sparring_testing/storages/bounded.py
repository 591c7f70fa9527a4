"""Tests of bounded storages that hold for every policy."""

from __future__ import annotations

import numpy as np
import pytest

from sparring.contracts import Keys, Rows, Storage
from sparring.errors import CapacityError
from sparring_testing.references.ledger import Ledger, fill, require_capacity
from sparring_testing.references.samples import (
    Row,
    assert_contains_rows,
    distinct_keys,
    random_rows,
    read_contents,
    require,
)

__all__ = ["BoundedTests"]


class BoundedTests:
    """The capacity is never exceeded, and no row is lost."""

    def test_capacity_is_never_exceeded(
        self, bounded_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage, capacity = bounded_storage, require_capacity(bounded_storage)
        for part in np.array_split(distinct_keys(rng, 4 * capacity), 13):
            try:
                storage.upsert(part, random_rows(rng, len(part), storage.table))
            except CapacityError:
                assert not storage.capabilities.evicts, "a storage that evicts raised CapacityError"
            assert storage.size <= capacity == storage.capacity
            assert len(read_contents(storage)) == storage.size

    def test_nothing_is_evicted_before_the_storage_is_full(
        self, bounded_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage, capacity = bounded_storage, require_capacity(bounded_storage)
        # If each bucket is bounded, one may be full before the table is. At least half the capacity
        # must be usable before that.
        is_exact = storage.capabilities.eviction_scope == "table"
        num_fitting = capacity if is_exact else max(1, capacity // 2)
        for part in np.array_split(distinct_keys(rng, num_fitting), 5):
            assert len(storage.upsert(part, random_rows(rng, len(part), storage.table))) == 0
        assert storage.size == num_fitting

    def test_storage_that_evicts_stays_full(
        self, bounded_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage, capacity = bounded_storage, require_capacity(bounded_storage)
        require(storage.capabilities.evicts, "this storage declares evicts=False")
        fill(storage, rng)
        share = 1.0 if storage.capabilities.eviction_scope == "table" else 0.9
        assert storage.size >= share * capacity

    def test_full_storage_that_may_not_evict_raises_and_is_unchanged(
        self, bounded_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage, capacity = bounded_storage, require_capacity(bounded_storage)
        require(not storage.capabilities.evicts, "this storage declares evicts=True")
        keys = distinct_keys(rng, capacity + 1)
        rows = random_rows(rng, capacity + 1, storage.table)
        before = _upsert_until_rejected(storage, keys, rows)
        assert read_contents(storage) == before, "the rejected upsert left some of its rows"
        known = np.array(list(before), np.int64)
        replacement = random_rows(rng, len(known), storage.table)
        storage.upsert(known, replacement)  # a full storage accepts new rows for known keys
        assert_contains_rows(storage, known, replacement)
        assert storage.erase(known[:3]) == 3
        storage.upsert(known[:3], replacement[:3])
        assert storage.size == len(before)

    def test_upsert_of_known_keys_evicts_nothing(
        self, bounded_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage = bounded_storage
        require(storage.capabilities.evicts, "this storage declares evicts=False")
        fill(storage, rng)
        keys = np.array(list(read_contents(storage)), np.int64)
        rows = random_rows(rng, len(keys), storage.table)
        assert len(storage.upsert(keys, rows)) == 0
        assert_contains_rows(storage, keys, rows)

    def test_every_upserted_key_is_stored_or_was_returned_once_as_evicted(
        self, bounded_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage, capacity = bounded_storage, require_capacity(bounded_storage)
        require(storage.capabilities.evicts, "this storage declares evicts=False")
        ledger = Ledger(storage)
        keys = distinct_keys(rng, 4 * capacity)
        for _ in range(12):
            chosen = rng.permutation(keys)[: max(1, capacity // 2)]
            ledger.upsert(chosen, random_rows(rng, len(chosen), storage.table), rng)
        ledger.check()

    def test_one_call_may_contain_more_rows_than_fit(
        self, bounded_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage, capacity = bounded_storage, require_capacity(bounded_storage)
        require(storage.capabilities.evicts, "this storage declares evicts=False")
        ledger = Ledger(storage)
        keys = distinct_keys(rng, 3 * capacity)
        ledger.upsert(keys[:capacity], random_rows(rng, capacity, storage.table), rng)
        # Old keys, in a different order, among more new keys than fit.
        mixed = rng.permutation(keys)
        ledger.upsert(mixed, random_rows(rng, len(mixed), storage.table), rng)
        ledger.check()

    def test_find_keeps_scores(self, bounded_storage: Storage, rng: np.random.Generator) -> None:
        storage = bounded_storage
        keys = distinct_keys(rng, max(2, require_capacity(storage) // 2))
        for part in np.array_split(keys, 2):
            storage.upsert(part, random_rows(rng, len(part), storage.table))
        before = read_contents(storage)
        for _ in range(3):
            storage.find(keys[: len(keys) // 3])
        assert read_contents(storage) == before, "find changed scores"

    def test_erased_rows_are_not_returned_as_evicted(
        self, bounded_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage, capacity = bounded_storage, require_capacity(bounded_storage)
        require(storage.capabilities.evicts, "this storage declares evicts=False")
        keys = distinct_keys(rng, 3 * capacity)
        storage.upsert(keys[:capacity], random_rows(rng, capacity, storage.table))
        storage.erase(keys[:capacity])
        evicted = storage.upsert(keys[capacity:], random_rows(rng, 2 * capacity, storage.table))
        assert not set(evicted.keys.tolist()) & set(keys[:capacity].tolist())

    def test_evicted_rows_belong_to_the_caller(
        self, bounded_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage, capacity = bounded_storage, require_capacity(bounded_storage)
        require(storage.capabilities.evicts, "this storage declares evicts=False")
        fill(storage, rng)
        rows = random_rows(rng, capacity, storage.table)
        evicted = storage.upsert(distinct_keys(rng, capacity), rows)
        copies = evicted.keys.copy(), evicted.rows.copy(), evicted.scores.copy()
        before = read_contents(storage)
        storage.upsert(distinct_keys(rng, capacity), rows)
        given = evicted.keys, evicted.rows, evicted.scores
        assert all(np.array_equal(a, b) for a, b in zip(given, copies, strict=True))
        before = read_contents(storage)
        evicted.keys[:] = 5
        evicted.rows[:] = -1
        evicted.scores[:] = 3
        assert read_contents(storage) == before


def _upsert_until_rejected(storage: Storage, keys: Keys, rows: Rows) -> dict[int, Row]:
    """Upserts until the storage is full and returns its contents before the rejected upsert."""
    for part in np.array_split(np.arange(len(keys)), 7):
        before = read_contents(storage)
        try:
            storage.upsert(keys[part], rows[part])
        except CapacityError:
            return before
    pytest.fail(f"a storage of capacity {storage.capacity} accepted {len(keys)} keys")
