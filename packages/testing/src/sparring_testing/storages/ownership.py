"""Tests of the ownership of arrays."""

from __future__ import annotations

import numpy as np

from sparring.contracts import Storage
from sparring_testing.references.samples import (
    assert_contains_rows,
    distinct_keys,
    random_rows,
    read_contents,
)

__all__ = ["OwnershipTests"]


class OwnershipTests:
    """The storage keeps no array of the caller and returns none of its internal arrays."""

    def test_arrays_passed_in_may_be_overwritten_afterwards(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 100)
        rows = random_rows(rng, 100, storage.table)
        passed_keys, passed_rows = keys.copy(), rows.copy()
        storage.upsert(passed_keys, passed_rows)
        passed_keys[:] = 5
        passed_rows[:] = -5
        assert_contains_rows(storage, keys, rows)
        assert storage.size == 100
        assert not storage.find([5]).found[0]

    def test_arrays_passed_in_are_not_written_to(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 100)
        rows = random_rows(rng, 100, storage.table)
        passed_keys, passed_rows = keys.copy(), rows.copy()
        # The comparison below detects a storage that ignores this flag.
        passed_keys.flags.writeable = passed_rows.flags.writeable = False
        storage.upsert(passed_keys, passed_rows)
        storage.find(passed_keys)
        storage.erase(passed_keys)
        assert np.array_equal(passed_keys, keys)
        assert np.array_equal(passed_rows, rows)

    def test_strided_and_converted_arrays_are_read_correctly(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 200)
        rows = random_rows(rng, 200, storage.table)
        storage.upsert(keys[::2], rows[::2])
        storage.upsert(keys[1::2], np.asfortranarray(rows[1::2]))
        assert_contains_rows(storage, keys, rows)
        small = np.arange(10, dtype=np.int16)
        storage.upsert(small, rows[:10])
        assert_contains_rows(storage, small.astype(np.uint64), rows[:10])

    def test_found_rows_belong_to_the_caller(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 100)
        rows = random_rows(rng, 100, storage.table)
        storage.upsert(keys, rows)
        first = storage.find(keys)
        first.rows[:] = -1
        first.found[:] = False
        assert_contains_rows(storage, keys, rows)
        second = storage.find(keys)
        storage.upsert(keys, random_rows(rng, 100, storage.table))
        assert np.array_equal(second.rows, rows), "a later upsert changed rows returned earlier"

    def test_scanned_chunks_belong_to_the_caller(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 100)
        storage.upsert(keys, random_rows(rng, 100, storage.table))
        before = read_contents(storage)
        chunks = list(storage.scan(9))  # the first must outlive the last
        assert sorted(key for chunk in chunks for key in chunk.keys.tolist()) == sorted(before)
        for chunk in chunks:
            chunk.keys[:] = 5
            chunk.rows[:] = -1
            chunk.scores[:] = 3
        assert read_contents(storage) == before
        assert storage.find(keys).found.all()
