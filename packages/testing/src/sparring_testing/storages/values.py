"""Tests of extreme keys, all widths, and the bits of rows."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from sparring.adapter import DTYPES
from sparring.contracts import Storage
from sparring_testing.references.samples import (
    EXTREME_KEYS,
    MakeStorage,
    assert_contains_rows,
    distinct_keys,
    make_table,
    random_rows,
    read_contents,
    row_bytes,
)

__all__ = ["ValueTests"]

_DIMS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 63, 64, 100, 129, 512, 1024)

# State whose 16-bit halves are signaling NaNs as float16 or bfloat16; a conversion would change them.
_SIGNALLING_HALVES = (0x7F817F81, 0xFF81FF81, 0x7C017C01, 0x3F807F81, 0x7F813F80)


class ValueTests:
    """No key is reserved, and no value is altered."""

    def test_every_int64_is_a_valid_key(self, storage: Storage, rng: np.random.Generator) -> None:
        keys = EXTREME_KEYS
        rows = random_rows(rng, len(keys), storage.table)
        assert not storage.find(keys).found.any()
        storage.upsert(keys, rows)
        assert_contains_rows(storage, keys, rows)
        assert storage.size == len(keys)
        held = read_contents(storage)
        assert {key: row.data for key, row in held.items()} == dict(
            zip(keys.tolist(), row_bytes(rows), strict=True)
        )
        assert storage.erase(keys) == len(keys)
        assert not storage.find(keys).found.any()

    @pytest.mark.parametrize("key", EXTREME_KEYS.tolist())
    def test_single_extreme_key_is_stored(
        self, storage: Storage, rng: np.random.Generator, key: int
    ) -> None:
        rows = random_rows(rng, 1, storage.table)
        storage.upsert([key], rows)
        others = np.setdiff1d(EXTREME_KEYS, key)
        assert not storage.find(others).found.any()
        assert_contains_rows(storage, [key], rows)
        assert storage.erase(others) == 0
        assert storage.erase([key]) == 1
        assert storage.size == 0

    def test_neighboring_and_aligned_keys_are_kept_apart(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        # Ranges and multiples of powers of two, which a weak hash maps to few slots.
        numbers = np.arange(-250, 250)
        keys = np.unique(np.concatenate([numbers << shift for shift in (0, 1, 7, 20, 32, 54)]))
        rows = random_rows(rng, len(keys), storage.table)
        storage.upsert(keys, rows)
        assert storage.size == len(keys)
        assert_contains_rows(storage, keys, rows)

    @pytest.mark.parametrize(
        ("dtype", "dim"),
        [(dtype, dim) for dtype in ("float32", "float64") for dim in _DIMS]
        # Rows whose number of bytes is even but not a multiple of four, and multiples of four.
        + [(dtype, dim) for dtype in ("float16", "bfloat16", "int8") for dim in (1, 2, 3, 17, 64)],
    )
    def test_rows_of_every_dim(
        self, new_storage: MakeStorage, rng: np.random.Generator, dim: int, dtype: str
    ) -> None:
        table = make_table(dim, dtype)
        storage = new_storage(table)
        keys = distinct_keys(rng, 80)
        rows = random_rows(rng, 80, table)
        storage.upsert(keys, rows)
        assert_contains_rows(storage, keys, rows)
        held = read_contents(storage)
        assert [held[key].data for key in keys.tolist()] == row_bytes(rows)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_state_behind_the_embedding_is_part_of_the_row(
        self, new_storage: MakeStorage, rng: np.random.Generator, dtype: str
    ) -> None:
        table = make_table(5, dtype, state_width=11)
        storage = new_storage(table)
        keys = distinct_keys(rng, 80)
        rows = random_rows(rng, 80, table)
        storage.upsert(keys, rows)
        assert storage.find(keys).rows.shape == (80, table.width)
        assert_contains_rows(storage, keys, rows)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_state_of_16_bit_rows_is_float32_bit_for_bit(
        self, new_storage: MakeStorage, rng: np.random.Generator, dtype: str
    ) -> None:
        table = make_table(3, dtype, state_width=5)  # with a gap before the state
        storage = new_storage(table)
        keys = distinct_keys(rng, 80)
        rows = np.zeros((80, table.width), table.numpy_dtype)
        bits = rng.integers(0, 2**32, (80, 5), np.uint32)
        bits[0] = _SIGNALLING_HALVES
        state = bits.view(np.float32)
        table.embeddings(rows)[...] = random_rows(rng, 80, make_table(3, dtype))
        table.state(rows)[...] = state
        storage.upsert(keys, rows)
        assert row_bytes(table.state(storage.find(keys).rows)) == row_bytes(state)
        assert_contains_rows(storage, keys, rows)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_row_bits_are_preserved(
        self, new_storage: MakeStorage, rng: np.random.Generator, dtype: str
    ) -> None:
        table = make_table(8, dtype)
        storage = new_storage(table)
        raw = rng.integers(0, 256, (200, table.row_bytes), np.uint8)
        rows = raw.view(table.numpy_dtype)  # contains NaNs with arbitrary payloads
        if dtype != "int8":
            # NumPy's own finfo does not support bfloat16.
            info = ml_dtypes.finfo(table.numpy_dtype)  # type: ignore[no-untyped-call]
            least, most = info.smallest_subnormal, info.max
            special = [0.0, -0.0, np.inf, -np.inf, np.nan, least, most, -most]
            rows[0] = np.array(special, table.numpy_dtype)
            integers = rows.view(f"u{table.numpy_dtype.itemsize}")
            integers[1, :4] = integers[0, 4] ^ np.array([1, 2, 3, 4], integers.dtype)
        keys = distinct_keys(rng, 200)
        storage.upsert(keys, rows)
        assert_contains_rows(storage, keys, rows)
        held = read_contents(storage)
        assert [held[key].data for key in keys.tolist()] == row_bytes(rows)
