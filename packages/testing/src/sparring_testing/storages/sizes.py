"""Tests calls with no rows, one row and a million rows."""

from __future__ import annotations

import os

import numpy as np

from sparring.contracts import Storage
from sparring_testing.references.samples import (
    MakeStorage,
    assert_contains_rows,
    make_table,
    random_rows,
    read_contents,
)

__all__ = ["SizeTests"]

_MILLION = int(os.environ.get("SPARRING_KIT_ROWS", "1000000"))


class SizeTests:
    """Calls can have any size."""

    def test_empty_calls_are_accepted(self, storage: Storage, rng: np.random.Generator) -> None:
        table = storage.table
        storage.upsert([1, 2], random_rows(rng, 2, table))
        before = read_contents(storage)
        no_keys, no_rows = np.empty(0, np.int64), np.empty((0, table.width), table.numpy_dtype)
        result = storage.find(no_keys)
        assert result.rows.shape == (0, table.width)
        assert result.found.shape == (0,)
        assert len(storage.upsert(no_keys, no_rows)) == 0
        assert storage.erase(no_keys) == 0
        assert storage.find([]).rows.shape == (0, table.width)
        if storage.capabilities.touch:
            storage.touch(no_keys)
        if storage.capabilities.evict:
            assert len(storage.evict(0)) == 0
        assert read_contents(storage) == before

    def test_calls_of_one_row(self, storage: Storage, rng: np.random.Generator) -> None:
        rows = random_rows(rng, 100, storage.table)
        for key in range(100):
            storage.upsert([key], rows[key : key + 1])
        for key in range(100):
            assert_contains_rows(storage, [key], rows[key : key + 1])
        for key in range(0, 100, 2):
            assert storage.erase([key]) == 1
        assert sorted(read_contents(storage)) == list(range(1, 100, 2))

    def test_call_of_a_million_rows(
        self, new_storage: MakeStorage, rng: np.random.Generator
    ) -> None:
        table = make_table(dim=1)
        storage = new_storage(table)
        # An odd factor makes the keys distinct and spreads them over all 64 bits.
        keys = np.arange(_MILLION, dtype=np.int64) * np.int64(0x1E3779B97F4A7C15)
        rows = rng.random((_MILLION, 1), np.float32)
        assert len(storage.upsert(keys, rows)) == 0
        assert storage.size == _MILLION
        result = storage.find(keys[::-1])
        assert result.found.all()
        assert np.array_equal(result.rows, rows[::-1])
        num_scanned = sum(len(chunk) for chunk in storage.scan())
        assert num_scanned == _MILLION
        assert storage.erase(keys) == _MILLION
        assert storage.size == 0
