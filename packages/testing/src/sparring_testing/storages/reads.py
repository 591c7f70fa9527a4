"""Promises of `find`."""

from __future__ import annotations

import numpy as np
import pytest

from sparring.contracts import Columns, Storage
from sparring_testing.references.samples import (
    MakeStorage,
    assert_contains_rows,
    distinct_keys,
    make_table,
    random_rows,
    read_contents,
    row_bytes,
)

__all__ = ["ReadingTests"]


class ReadingTests:
    """`find` returns the rows that were written, in the order of the keys, and nothing else."""

    def test_upsert_is_visible_to_next_find(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 500)
        for part in np.array_split(keys, 20):
            rows = random_rows(rng, len(part), storage.table)
            storage.upsert(part, rows)
            assert_contains_rows(storage, part, rows)

    def test_find_returns_rows_in_the_order_of_its_keys(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 500)
        rows = random_rows(rng, 500, storage.table)
        storage.upsert(keys, rows)
        order = rng.permutation(500)[:300]
        assert_contains_rows(storage, keys[order], rows[order])

    def test_missing_rows_are_zeros_and_found_is_false(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 400)
        rows = random_rows(rng, 400, storage.table)
        is_known = rng.random(400) < 0.5
        storage.upsert(keys[is_known], rows[is_known])
        # A prefilled array shows whether zeros are written explicitly.
        out = np.full((400, storage.table.width), 7.0, storage.table.numpy_dtype)
        result = storage.find(keys, out=out)
        assert result.found.tolist() == is_known.tolist()
        expected = np.where(is_known[:, None], rows, 0).astype(rows.dtype)
        assert row_bytes(result.rows) == row_bytes(expected)

    def test_find_in_an_empty_storage_finds_nothing(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        result = storage.find(distinct_keys(rng, 100))
        assert not result.found.any()
        assert not result.rows.any()

    def test_find_changes_nothing(self, storage: Storage, rng: np.random.Generator) -> None:
        keys = distinct_keys(rng, 200)
        storage.upsert(keys[:100], random_rows(rng, 100, storage.table))
        before, size = read_contents(storage), storage.size
        for _ in range(3):
            storage.find(keys)  # half of them unknown
            storage.find(keys[:50], Columns(0, 1))
        assert storage.size == size == 100
        assert read_contents(storage) == before, "find changed rows, scores or keys"

    def test_columns_select_a_part_of_each_row(
        self, new_storage: MakeStorage, rng: np.random.Generator
    ) -> None:
        table = make_table(dim=5, state_width=4)
        storage = new_storage(table)
        keys = distinct_keys(rng, 60)
        rows = random_rows(rng, 60, table)
        storage.upsert(keys[:50], rows[:50])
        rows[50:] = 0
        for span in (Columns(0, 5), Columns(5, 9), Columns(0, 1), Columns(8, 9), Columns(2, 7)):
            result = storage.find(keys, span)
            assert result.rows.shape == (60, span.end - span.begin)
            assert row_bytes(result.rows) == row_bytes(rows[:, span.begin : span.end]), span
            assert result.found.sum() == 50

    @pytest.mark.parametrize("columns", [None, Columns(1, 3)])
    def test_out_is_filled_in_place(
        self, storage: Storage, rng: np.random.Generator, columns: Columns | None
    ) -> None:
        keys = distinct_keys(rng, 50)
        rows = random_rows(rng, 50, storage.table)
        storage.upsert(keys, rows)
        expected = rows if columns is None else rows[:, columns.begin : columns.end]
        out = np.full(expected.shape, 7.0, storage.table.numpy_dtype)
        result = storage.find(keys, columns, out=out)
        assert result.rows is out, "the result must be the array that was passed"
        assert row_bytes(out) == row_bytes(expected)

    def test_find_result_has_the_promised_types(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 10)
        result = storage.find(keys)
        assert result.rows.shape == (10, storage.table.width)
        assert result.rows.dtype == storage.table.numpy_dtype
        assert result.rows.flags.c_contiguous
        assert result.found.shape == (10,)
        assert result.found.dtype == np.bool_
