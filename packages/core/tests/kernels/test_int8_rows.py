"""int8 rows, bit by bit: a second implementation of native/kernels/bytes.h."""

from __future__ import annotations

import hashlib
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from sparring import _native
from sparring.contracts.device.kernels import Rounding
from sparring.contracts.tables.initializers import Normal
from sparring.contracts.tables.table import TableConfig
from sparring.kernels import functions as kernels
from sparring.kernels.mixed_precision import read_embeddings, read_state, write_state

from .test_mixed_precision import random_bits

DIMS = [1, 2, 5, 8, 16, 31, 64, 100]
LARGEST = 127 * 448.0

Floats = npt.NDArray[np.float32]


pytestmark = pytest.mark.usefixtures("simd_level")


def values_of(dim: int, count: int = 60) -> Floats:
    """Rows of very different magnitudes; the first ones are special."""
    rng = np.random.default_rng(dim)
    values: Floats = rng.standard_normal((count, dim)).astype(np.float32)
    values *= (10.0 ** rng.integers(-12, 4, (count, 1))).astype(np.float32)
    values[0] = 0
    values[1, -1] = np.nan
    values[2, 0] = -np.inf
    values[3, -1] = 1e30
    values[4] = 1e-42
    return values


def rounding_of(count: int) -> Rounding:
    return Rounding(np.arange(count) * 2**40 - 7, seed=3, step=5)


def expected_embeddings(values: Floats, random: npt.NDArray[np.int64] | None) -> bytes:
    rows = []
    for i, row in enumerate(values.astype(np.float64)):
        if not np.isfinite(row).all():
            rows.append(bytes(len(row)) + np.float16(np.nan).tobytes())
            continue
        scale = float(np.float32(np.abs(row).max()) / np.float32(127))
        mantissa, exponent = np.frexp(scale)  # from 0.5 to 1
        scale = float(np.clip(np.ldexp(np.ceil(mantissa * 8) / 8, exponent), 2.0**-22, 448))
        held = np.clip(row, -127 * scale, 127 * scale).astype(np.float32)
        units = held * (np.float32(2**14) / np.float32(scale))
        added = 2**13 if random is None else random[i] >> 2
        codes = (np.rint(units).astype(np.int64) + added) >> 14
        rows.append(codes.astype(np.int8).tobytes() + np.float16(scale).tobytes())
    return b"".join(rows)


@pytest.mark.parametrize("dim", DIMS)
def test_embeddings_have_the_bits_that_the_format_defines(dim: int) -> None:
    values = values_of(dim)
    rounding = rounding_of(len(values))
    out = np.zeros((len(values), dim + 2), np.int8)
    kernels.encode(values, out)
    assert out.tobytes() == expected_embeddings(values, None)
    kernels.encode(values, out, rounding)
    random = random_bits(rounding, dim).astype(np.int64)
    assert out.tobytes() == expected_embeddings(values, random)
    scales = np.ascontiguousarray(out[:, dim:]).view(np.float16).astype(np.float32)
    expected = out[:, :dim] * scales
    np.testing.assert_array_equal(kernels.decode(out), expected)
    assert np.isnan(expected[1:3]).all()
    assert np.abs(expected[3]).max() == LARGEST


_CODES = np.array([t if not e else (8 + t) * 2 ** (e - 1) for e in range(16) for t in range(8)])
"""Magnitudes that the codes of state represent."""


def expected_state(values: Floats, random: npt.NDArray[np.int64] | None) -> bytes:
    rows = []
    for i, row in enumerate(values.astype(np.float64)):
        if not np.isfinite(row).all():
            rows.append(bytes(len(row)) + b"\xc0\x7f")
            continue
        largest = np.abs(row).max()
        if not largest:
            rows.append(bytes(len(row) + 2))
            continue
        scale = max(2.0 ** np.ceil(np.log2(largest / _CODES[-1])), 2.0**-126)
        codes = []
        for j, value in enumerate(np.abs(row) / scale):
            below = int(np.searchsorted(_CODES, value, "right")) - 1
            unit = _CODES[below + 1] - _CODES[below] if below < 127 else 1
            part = (value - _CODES[below]) / unit
            if random is None:
                # Of two nearest ones, the even code of normal numbers, and the upper one of others.
                is_up = part > 0.5 or (part == 0.5 and (value < 8 or below % 2 == 1))
            else:
                is_up = int(part * 2**16) + random[i, j] >= 2**16
            code = max(below + bool(is_up), int(value > 0))
            codes.append(code | 128 * bool(np.signbit(row[j])))
        rows.append(bytes(codes) + np.array(scale, ml_dtypes.bfloat16).tobytes())
    return b"".join(rows)


@pytest.mark.parametrize("dim", DIMS)
def test_state_has_the_bits_that_the_format_defines(dim: int) -> None:
    first, second = values_of(dim), np.abs(values_of(dim)) ** np.float32(1.2)
    first[5] = np.finfo(np.float32).max
    first[6] = 1.875 * 2.0**-100  # the largest magnitude of a scale; row 7 needs the next one
    first[7] = np.nextafter(first[6], np.float32(1))
    numbers = values_of(dim)[:, : dim - 1]
    state = np.concatenate([first, second, numbers], 1)
    table = TableConfig("t", dim, "int8", state_width=state.shape[1])
    rounding = rounding_of(len(state))
    padded = -(-dim // 64) * 64
    random = random_bits(rounding, 4 * padded)
    for is_random in (False, True):
        rows = np.zeros((len(state), table.width), np.int8)
        if is_random:
            keys = np.asarray(rounding.keys)
            _native.encode_states(state, rows, dim, keys, rounding.seed, rounding.step)
        else:
            write_state(table, rows, state)
        assert not rows[:, : dim + 2].any()
        for number, vector in enumerate((first, second), start=1):
            begin = number * (dim + 2)
            found = rows[:, begin : begin + dim + 2].tobytes()
            place = number * padded
            columns = random[:, place : place + dim].astype(np.int64)
            drawn = columns if is_random else None
            assert found == expected_state(vector, drawn)
        halves = np.zeros(numbers.shape, ml_dtypes.bfloat16)
        kernels.encode(numbers, halves)
        decoded = read_state(table, rows)
        if not is_random:
            expected = kernels.decode(halves)
            np.testing.assert_array_equal(decoded[:, 2 * dim :], expected)
        is_zero = np.isfinite(decoded[:, : 2 * dim]) & (decoded[:, : 2 * dim] == 0)
        assert not (is_zero & (state[:, : 2 * dim] != 0)).any(), "a number became zero"


@pytest.mark.parametrize("dim", [3, 16, 5000])
def test_initial_values_are_the_nearest_codes_of_float32_ones(dim: int) -> None:
    keys = np.array([-1, 5, 2**62, -(2**63)])
    narrow, wide = (TableConfig("t", dim, each, Normal(0, 0.01)) for each in ("int8", "float32"))
    expected = np.zeros((4, dim + 2), np.int8)
    kernels.encode(kernels.initial_rows(keys, wide), expected)
    np.testing.assert_array_equal(kernels.initial_rows(keys, narrow), expected)


def test_the_format_never_drifts() -> None:
    table = TableConfig("t", 20, "int8", state_width=41)
    keys = np.arange(50) ** 5
    rows: Any = np.zeros((50, table.width), np.int8)
    embeddings = kernels.initial_rows(keys, TableConfig("t", 20))
    kernels.encode(embeddings, table.embeddings(rows), Rounding(keys, 1, 2))
    state = np.square(kernels.initial_rows(keys, TableConfig("s", 41)))
    _native.encode_states(state, rows, 20, keys, 1, 2)
    assert hashlib.sha256(rows.tobytes()).hexdigest()[:16] == "ac6a7cafb95a9fa6"


def test_random_numbers_average_to_the_values() -> None:
    count, dim = 100_000, 6
    values = np.tile(np.float32([0.9, -0.31, 0.017, 0.0005, 0.00001, -0.6]), (count, 1))
    table = TableConfig("t", dim, "int8", state_width=dim)
    rows = np.zeros((count, table.width), np.int8)
    rounding = rounding_of(count)
    kernels.encode(values, table.embeddings(rows), rounding)
    keys = np.asarray(rounding.keys)
    _native.encode_states(values, rows, dim, keys, rounding.seed, rounding.step)
    for each in (read_embeddings(table, rows), read_state(table, rows)):
        found = each.astype(np.float64)
        deviation = found.std(0) / np.sqrt(count)
        assert (np.abs(found.mean(0) - values[0]) <= 4.5 * deviation + 1e-6).all()
