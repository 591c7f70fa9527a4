"""Tests of `upsert`, `erase`, `clear`, `flush` and `size`."""

from __future__ import annotations

import numpy as np

from sparring.contracts import Storage
from sparring_testing.references.samples import (
    MakeStorage,
    assert_contains_rows,
    distinct_keys,
    make_table,
    random_rows,
    read_contents,
    row_bytes,
)

__all__ = ["WritingTests"]


class WritingTests:
    """The given keys are replaced, inserted and removed; all other rows stay."""

    def test_last_upsert_wins(self, storage: Storage, rng: np.random.Generator) -> None:
        keys = distinct_keys(rng, 300)
        rows = random_rows(rng, 300, storage.table)
        storage.upsert(keys, rows)
        for _ in range(5):
            chosen = rng.permutation(300)[:100]
            rows[chosen] = random_rows(rng, 100, storage.table)
            storage.upsert(keys[chosen], rows[chosen])
        assert storage.size == 300
        assert_contains_rows(storage, keys, rows)

    def test_whole_rows_are_replaced(
        self, new_storage: MakeStorage, rng: np.random.Generator
    ) -> None:
        table = make_table(dim=3, state_width=6)
        storage = new_storage(table)
        keys = distinct_keys(rng, 50)
        storage.upsert(keys, random_rows(rng, 50, table))
        zeros = np.zeros((50, 9), table.numpy_dtype)
        storage.upsert(keys, zeros)
        assert_contains_rows(storage, keys, zeros)

    def test_upsert_accepts_known_and_new_keys_in_one_call(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 200)
        storage.upsert(keys[:100], random_rows(rng, 100, storage.table))
        rows = random_rows(rng, 200, storage.table)
        mixed = rng.permutation(200)
        storage.upsert(keys[mixed], rows[mixed])
        assert storage.size == 200
        assert_contains_rows(storage, keys, rows)

    def test_upsert_below_the_capacity_evicts_nothing(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        evicted = storage.upsert(distinct_keys(rng, 100), random_rows(rng, 100, storage.table))
        assert len(evicted) == 0
        assert evicted.keys.shape == (0,)
        assert evicted.rows.shape == (0, storage.table.width)
        assert evicted.scores.shape == (0,)

    def test_erase_removes_the_named_keys_only(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 300)
        rows = random_rows(rng, 300, storage.table)
        storage.upsert(keys, rows)
        is_erased = rng.random(300) < 0.4
        assert storage.erase(keys[is_erased]) == is_erased.sum()
        assert storage.find(keys).found.tolist() == (~is_erased).tolist()
        assert_contains_rows(storage, keys[~is_erased], rows[~is_erased])
        assert storage.size == (~is_erased).sum()

    def test_erase_of_unknown_keys_is_not_an_error_and_counts_none(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 100)
        assert storage.erase(keys) == 0
        storage.upsert(keys[:50], random_rows(rng, 50, storage.table))
        before = read_contents(storage)
        assert storage.erase(keys[60:]) == 0
        assert read_contents(storage) == before
        assert storage.erase(keys[40:60]) == 10
        assert storage.erase(keys[40:60]) == 0

    def test_erased_key_may_be_inserted_again(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 100)
        for _ in range(5):
            rows = random_rows(rng, 100, storage.table)
            storage.upsert(keys, rows)
            assert_contains_rows(storage, keys, rows)
            storage.erase(keys)
            assert not storage.find(keys).found.any()
            assert storage.size == 0

    def test_clear_removes_all_rows_and_the_storage_stays_usable(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 200)
        storage.upsert(keys, random_rows(rng, 200, storage.table))
        storage.clear()
        assert storage.size == 0
        assert not storage.find(keys).found.any()
        assert read_contents(storage) == {}
        rows = random_rows(rng, 200, storage.table)
        storage.upsert(keys, rows)
        assert_contains_rows(storage, keys, rows)

    def test_size_counts_rows(self, storage: Storage, rng: np.random.Generator) -> None:
        keys = distinct_keys(rng, 100)
        assert storage.size == len(storage) == 0
        storage.upsert(keys[:60], random_rows(rng, 60, storage.table))
        assert storage.size == 60
        storage.upsert(keys[50:], random_rows(rng, 50, storage.table))
        assert storage.size == len(storage) == 100

    def test_flush_changes_nothing(self, storage: Storage, rng: np.random.Generator) -> None:
        storage.flush()
        storage.upsert(distinct_keys(rng, 100), random_rows(rng, 100, storage.table))
        before = read_contents(storage)
        storage.flush()
        assert read_contents(storage) == before

    def test_tables_of_two_storages_are_separate(
        self, new_storage: MakeStorage, rng: np.random.Generator
    ) -> None:
        first, second = new_storage(make_table()), new_storage(make_table())
        keys = distinct_keys(rng, 50)
        rows = random_rows(rng, 100, first.table)
        first.upsert(keys, rows[:50])
        assert second.size == 0
        second.upsert(keys, rows[50:])
        first.erase(keys[:10])
        assert row_bytes(second.find(keys).rows) == row_bytes(rows[50:])
