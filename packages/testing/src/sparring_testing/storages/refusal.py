"""Tests that invalid calls are rejected and change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring.contracts import Columns, Rows, Storage
from sparring.errors import InvalidArgumentError
from sparring_testing.references.samples import (
    MakeStorage,
    Row,
    distinct_keys,
    make_table,
    random_rows,
    read_contents,
    require,
)

__all__ = ["RejectionTests"]

_BAD_KEYS: dict[str, Any] = {
    "float keys": np.array([1.0, 2.0]),
    "float keys with a fraction": np.array([1.0, 2.5]),
    "keys of rank 2": np.array([[1, 2]], np.int64),
    "keys of rank 0": np.int64(1),
    "bool keys": np.array([True, False]),
    "text keys": np.array(["1", "2"]),
    "keys beyond int64": np.array([1, 2**64 - 1], np.uint64),
    "objects": [None, object()],
}

_NO_RANGES: dict[str, Any] = {
    "a number": 3,
    "one number": (0,),
    "three numbers": (0, 1, 2),
    "fractions": (0.5, 2),
    "text": "ab",
}

_NO_COUNTS: dict[str, Any] = {
    "a fraction": 1.5,
    "text": "a",
    "None": None,
    "beyond int64": 2**70,
}


class RejectionTests:
    """Invalid input raises a specific error and leaves the table unchanged."""

    @pytest.mark.parametrize("what", _BAD_KEYS)
    @pytest.mark.parametrize("operation", ["find", "upsert", "erase"])
    def test_invalid_keys_are_rejected_and_change_nothing(
        self, storage: Storage, rng: np.random.Generator, operation: str, what: str
    ) -> None:
        before = _fill(storage, rng)
        keys = _BAD_KEYS[what]
        rows = random_rows(rng, np.size(keys), storage.table)
        with pytest.raises(InvalidArgumentError):
            _call(storage, operation, keys, rows)
        _assert_unchanged(storage, before)

    @pytest.mark.parametrize("operation", ["find", "upsert", "erase"])
    def test_duplicate_keys_are_rejected_and_change_nothing(
        self, storage: Storage, rng: np.random.Generator, operation: str
    ) -> None:
        require(storage.validate, "make_storage opens storages with validate=False")
        before = _fill(storage, rng)
        keys = np.array([1, 77, 3, 77])
        with pytest.raises(InvalidArgumentError, match="77"):
            _call(storage, operation, keys, random_rows(rng, 4, storage.table))
        _assert_unchanged(storage, before)

    @pytest.mark.parametrize(
        "shape",
        [(2, 3), (2, 5), (1, 4), (3, 4), (8,), (2, 2, 2)],
        ids=["too narrow", "too wide", "too few", "too many", "rank 1", "rank 3"],
    )
    def test_rows_of_wrong_shape_are_rejected_and_change_nothing(
        self, storage: Storage, rng: np.random.Generator, shape: tuple[int, ...]
    ) -> None:
        before = _fill(storage, rng)
        with pytest.raises(InvalidArgumentError):
            storage.upsert([1, 77], np.ones(shape, storage.table.numpy_dtype))
        _assert_unchanged(storage, before)

    @pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "int64", "complex64"])
    def test_rows_of_wrong_dtype_are_rejected_and_change_nothing(
        self, storage: Storage, rng: np.random.Generator, dtype: str
    ) -> None:
        before = _fill(storage, rng)
        with pytest.raises(InvalidArgumentError):
            storage.upsert([1, 77], np.ones((2, storage.table.width), dtype))
        _assert_unchanged(storage, before)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_rows_of_16_bits_accept_no_other_dtype(
        self, new_storage: MakeStorage, rng: np.random.Generator, dtype: str
    ) -> None:
        storage = new_storage(make_table(4, dtype))
        before = _fill(storage, rng)
        other = make_table(4, "float16" if dtype == "bfloat16" else "bfloat16").numpy_dtype
        for wrong in (other, np.dtype(np.float32), np.dtype(np.uint16)):
            with pytest.raises(InvalidArgumentError, match=f"must be {dtype}, found {wrong}"):
                storage.upsert([1, 77], np.ones((2, 4), wrong))
        _assert_unchanged(storage, before)

    @pytest.mark.parametrize("columns", [(0, 0), (2, 1), (-1, 2), (0, 5), (4, 5)])
    def test_columns_out_of_range_are_rejected(
        self, storage: Storage, columns: tuple[int, int]
    ) -> None:
        with pytest.raises(InvalidArgumentError):
            storage.find([1], Columns(*columns))
        with pytest.raises(InvalidArgumentError):
            storage.scan(10, Columns(*columns))

    @pytest.mark.parametrize("operation", ["find", "upsert", "erase"])
    def test_ragged_keys_and_rows_are_rejected_and_change_nothing(
        self, storage: Storage, rng: np.random.Generator, operation: str
    ) -> None:
        before = _fill(storage, rng)
        rows = random_rows(rng, 2, storage.table)
        with pytest.raises(InvalidArgumentError):
            _call(storage, operation, [[1], [2, 77]], rows)
        if operation == "upsert":
            ragged: Any = [rows[0].tolist(), rows[1].tolist()[:-1]]
            with pytest.raises(InvalidArgumentError):
                storage.upsert([1, 77], ragged)
        _assert_unchanged(storage, before)

    @pytest.mark.parametrize("what", _NO_RANGES)
    def test_columns_that_are_not_a_range_are_rejected(self, storage: Storage, what: str) -> None:
        columns = _NO_RANGES[what]
        with pytest.raises(InvalidArgumentError):
            storage.find([1], columns)
        with pytest.raises(InvalidArgumentError):
            storage.scan(10, columns)

    @pytest.mark.parametrize("what", _NO_COUNTS)
    def test_scan_with_a_non_integer_chunk_size_is_rejected(
        self, storage: Storage, what: str
    ) -> None:
        with pytest.raises(InvalidArgumentError):
            storage.scan(_NO_COUNTS[what])

    @pytest.mark.parametrize("what", _NO_COUNTS)
    def test_evict_of_a_non_integer_count_is_rejected_and_removes_nothing(
        self, bounded_storage: Storage, rng: np.random.Generator, what: str
    ) -> None:
        storage = bounded_storage
        require(storage.capabilities.evict, "this storage declares evict=False")
        storage.upsert([1, 2], random_rows(rng, 2, storage.table))
        with pytest.raises(InvalidArgumentError):
            storage.evict(_NO_COUNTS[what])
        assert sorted(read_contents(storage)) == [1, 2], "a rejected call changed the table"

    def test_read_only_out_is_rejected(self, storage: Storage, rng: np.random.Generator) -> None:
        before = _fill(storage, rng)
        read_only = np.ones((2, storage.table.width), storage.table.numpy_dtype)
        read_only.flags.writeable = False
        no_arrays: tuple[Any, ...] = (read_only, read_only.tolist(), read_only.tobytes(), 5)
        for out in no_arrays:
            with pytest.raises(InvalidArgumentError):
                storage.find([1, 2], out=out)
        assert (read_only == 1).all(), "find changed a read-only out"
        _assert_unchanged(storage, before)

    def test_out_that_does_not_match_is_rejected(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        before = _fill(storage, rng)
        width = storage.table.width
        for out in (
            np.ones((3, width), np.float32),
            np.ones((2, width - 1), np.float32),
            np.ones((2, width), np.float64),
            np.ones((2, 2 * width), np.float32)[:, ::2],
        ):
            with pytest.raises(InvalidArgumentError):
                storage.find([1, 2], out=out)
            assert (out == 1).all(), "find changed an out that it rejected"
        _assert_unchanged(storage, before)


def _call(storage: Storage, operation: str, keys: Any, rows: Rows) -> None:
    if operation == "upsert":
        storage.upsert(keys, rows)
    else:
        getattr(storage, operation)(keys)


def _fill(storage: Storage, rng: np.random.Generator) -> dict[int, Row]:
    keys = np.concatenate([[1, 2, 3], distinct_keys(rng, 20)])
    storage.upsert(keys, random_rows(rng, len(keys), storage.table))
    return read_contents(storage)


def _assert_unchanged(storage: Storage, before: dict[int, Row]) -> None:
    assert read_contents(storage) == before, "a rejected call changed the table"
    assert storage.size == len(before)
