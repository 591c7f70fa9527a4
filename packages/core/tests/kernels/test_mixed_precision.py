"""16-bit numbers: exact conversion, rounding to nearest, and stochastic rounding, bit by bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from sparring import _native
from sparring.contracts.device.kernels import Rounding
from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError
from sparring.kernels import functions as kernels

from .test_initializers import MASK32, mix64

HALVES = ["float16", "bfloat16"]
DIMS = [1, 3, 4, 7, 8, 9, 15, 16, 31, 33, 64, 100]


def dtype_of(name: str) -> np.dtype[Any]:
    return TableConfig("t", 1, name).numpy_dtype


def every_number(name: str) -> npt.NDArray[Any]:
    return np.arange(65_536, dtype=np.uint16).view(dtype_of(name))


def assert_same(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    """All bit patterns except NaNs."""
    whole = f"u{found.itemsize}"
    is_nan = nans_in(expected)
    assert found.dtype == expected.dtype
    assert np.array_equal(nans_in(found), is_nan)
    assert np.array_equal(found.view(whole)[~is_nan], expected.view(whole)[~is_nan])


def nans_in(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    # Selected by bits, because NumPy warns about signaling NaNs.
    bits = values.view(f"u{values.itemsize}") & (2 ** (8 * values.itemsize - 1) - 1)
    infinity = np.array(np.inf, values.dtype).view(bits.dtype)
    is_nan: npt.NDArray[np.bool_] = bits > infinity
    return is_nan


def encoded(values: npt.NDArray[Any], name: str, rounding: Rounding | None = None) -> Any:
    out = np.full(values.shape, 7, dtype_of(name))
    kernels.encode(values, out, rounding)
    return out


def awkward(name: str) -> npt.NDArray[Any]:
    """Every finite number of the type, every midpoint, and their neighbors."""
    numbers = every_number(name)
    numbers = numbers[~nans_in(numbers)].astype(np.float64)
    numbers = np.sort(numbers[np.isfinite(numbers)])
    between = (numbers[1:] + numbers[:-1]) / 2
    exact = np.concatenate([numbers, between]).astype(np.float32)
    up, down = np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(-np.inf))
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38], np.float32)
    return np.concatenate([exact, up, down, special])


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("dim", DIMS)
def test_every_number_is_read_exactly(name: str, dim: int) -> None:
    numbers = every_number(name)
    numbers = numbers[: len(numbers) // dim * dim].reshape(-1, dim)
    with np.errstate(invalid="ignore"):
        expected = numbers.astype(np.float32)
    assert_same(kernels.decode(numbers), expected)


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("name", HALVES)
def test_decoded_numbers_round_to_themselves(name: str) -> None:
    numbers = every_number(name).reshape(-1, 64)
    values = kernels.decode(numbers)
    rounding = Rounding(np.arange(len(numbers)), seed=3, step=5)
    assert_same(encoded(values, name), numbers)
    assert_same(encoded(values, name, rounding), numbers)


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("dim", DIMS)
def test_rounding_to_nearest_agrees_with_numpy(name: str, dim: int) -> None:
    rng = np.random.default_rng(dim)
    bits = rng.integers(0, 2**32, 50_000, np.uint32)
    values = np.concatenate([awkward(name), bits.view(np.float32)])
    values = values[: len(values) // dim * dim].reshape(-1, dim)
    with np.errstate(over="ignore", invalid="ignore"):
        assert_same(encoded(values, name), values.astype(dtype_of(name)))


# ---- stochastic rounding: a second implementation of native/kernels/halves.h


def random_bits(rounding: Rounding, dim: int) -> npt.NDArray[np.uint16]:
    salt = mix64((mix64(rounding.seed) + rounding.step) % 2**64)
    rows = []
    for key in rounding.keys.tolist():
        stream = mix64(key % 2**64 ^ salt)
        words = [rounding_word(stream, number) for number in range((dim + 1) // 2)]
        rows.append([half for word in words for half in (word & 0xFFFF, word >> 16)][:dim])
    return np.array(rows, np.uint16).reshape(-1, dim)


def rounding_word(stream: int, number: int) -> int:
    bits = (number * 0x9E3779B9 + stream) & MASK32
    bits ^= bits >> 16
    bits = bits * 0x85EBCA6B & MASK32
    bits ^= bits >> 13 ^ stream >> 32
    bits = bits * 0xC2B2AE35 & MASK32
    return bits ^ bits >> 16


def expected_rounding(values: npt.NDArray[Any], name: str, rounding: Rounding) -> npt.NDArray[Any]:
    dtype = dtype_of(name)
    info = ml_dtypes.finfo(dtype)
    magnitude = np.abs(values).astype(np.float64)
    # One unit in the last place: 2^-nmant of the next lower power of two, or of the smallest normal.
    # frexp, not log2, which may round up to a whole number.
    exponent = np.frexp(np.maximum(magnitude, float(info.smallest_normal)))[1] - 1
    place = np.ldexp(1.0, exponent - info.nmant)
    random = random_bits(rounding, values.shape[1]).astype(np.float64)
    if name == "float16":
        # Only 13 bits of a normal number are dropped, so 13 random bits decide.
        is_normal = magnitude >= float(info.smallest_normal)
        random = np.where(is_normal, np.floor(random / 8) * 8, random)
    parts = np.floor(np.where(np.isinf(values), 0, magnitude) / place * 65_536)
    result = np.floor((parts + random) / 65_536) * place
    result = np.minimum(result, float(info.max))
    result = np.where(np.isinf(values), np.inf, result)
    return np.copysign(result, values).astype(np.float32).astype(dtype)


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("dim", DIMS)
def test_stochastic_rounding_has_the_bits_that_the_format_defines(name: str, dim: int) -> None:
    rng = np.random.default_rng(dim)
    keys = np.array([0, -1, 1, 2**63 - 1, -(2**63), 77, 2**32, 2**32 - 1])
    scale = np.float32(10.0) ** rng.integers(-12, 6, (len(keys), dim))
    values = (rng.normal(size=(len(keys), dim)) * scale).astype(np.float32)
    values[0, 0], values[1, 0] = np.inf, -np.inf
    values[2, 0], values[3, 0] = (65_510.0, -66_000.0) if name == "float16" else (3.4e38, -3.4e38)
    values[4, 0] = -0.0
    for seed, step in ((0, 1), (2**64 - 1, 2**32 + 3), (0x123456789ABCDEF, 2**40)):
        rounding = Rounding(keys, seed, step)
        assert_same(encoded(values, name, rounding), expected_rounding(values, name, rounding))


GOLDEN = {
    "float16": "672e662e672e672e662e672e662e662e662e672e",
    "bfloat16": "cd3dcd3dcd3dcd3dcd3dcd3dcc3dcc3dcd3dcd3d",
}


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("name", HALVES)
def test_the_format_never_drifts(name: str) -> None:
    # Frozen, because a run that resumes on another machine depends on these bits. Never update them.
    seed = kernels.rounding_seed(TableConfig("movies", 10, name, seed=-7))
    rounding = Rounding(np.array([42]), seed, step=9)
    values = np.full((1, 10), 0.1, np.float32)
    assert encoded(values, name, rounding).tobytes().hex() == GOLDEN[name]


def test_the_rounding_seed_is_defined_by_the_format() -> None:
    table = TableConfig("movies", 10, "bfloat16", seed=-7)
    philox_key = kernels.initializer_spec(table).philox_key
    assert kernels.rounding_seed(table) == mix64(philox_key ^ 0x726F756E64696E67)


@pytest.mark.parametrize("name", HALVES)
def test_a_number_becomes_one_of_its_neighbors_and_itself_on_average(name: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=256).astype(np.float32) * np.float32(0.01)
    keys = np.arange(20_000)
    rows = np.tile(values, (len(keys), 1))
    found = encoded(rows, name, Rounding(keys, 1, 1)).astype(np.float64)
    places = [np.unique(column) for column in found.T]
    assert max(map(len, places)) == 2
    spacing = np.array([np.ptp(place) for place in places])
    assert np.all(found.min(axis=0) <= values)
    assert np.all(found.max(axis=0) >= values)
    # Each column is the mean of 20,000 draws, which deviate by at most half a unit each.
    errors = (found.mean(axis=0) - values) / np.where(spacing > 0, spacing, 1)
    assert np.abs(errors).max() < 4.5 * 0.5 / np.sqrt(len(keys))
    assert abs(errors.mean()) < 4 * 0.5 / np.sqrt(found.size)


@pytest.mark.parametrize("name", HALVES)
def test_random_bits_differ_by_key_step_seed_and_column(name: str) -> None:
    values = np.full((4_000, 24), 0.1, np.float32)
    keys = np.arange(4_000)
    draws = [
        encoded(values, name, Rounding(keys, seed, step)).astype(np.float64)
        for seed, step in ((1, 1), (1, 2), (2, 1))
    ]
    draws.append(encoded(values, name, Rounding(keys + 1, 1, 1)).astype(np.float64))
    columns = np.concatenate(draws, axis=1)
    correlations = np.corrcoef(columns, rowvar=False) - np.eye(columns.shape[1])
    assert np.abs(correlations).max() < 5.5 / np.sqrt(len(keys))


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_order_batch_and_threads_do_not_matter(name: str, threads: int) -> None:
    rng = np.random.default_rng(0)
    keys = rng.integers(-(2**63), 2**63 - 1, 5_000)
    values = rng.normal(size=(5_000, 19)).astype(np.float32)
    whole = encoded(values, name, Rounding(keys, 5, 6)).view(np.uint16)
    order = rng.permutation(len(keys))
    before = _native.pool_num_threads()
    _native.pool_configure(threads)
    try:
        again = encoded(values[order], name, Rounding(keys[order], 5, 6)).view(np.uint16)
    finally:
        _native.pool_configure(before)
    assert np.array_equal(again, whole[order])
    for i in (0, 1, 4_999):
        one = encoded(values[i : i + 1], name, Rounding(keys[i : i + 1], 5, 6)).view(np.uint16)
        assert np.array_equal(one[0], whole[i])


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("name", HALVES)
def test_embeddings_are_read_and_written_in_place_in_rows(name: str) -> None:
    table = TableConfig("t", 13, name, state_width=3)
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (500, table.row_bytes), np.uint8)
    rows = raw.view(table.numpy_dtype)
    before = rows.copy()
    values = rng.normal(size=(500, 13)).astype(np.float32)
    kernels.encode(values, table.embeddings(rows))
    assert_same(
        kernels.decode(table.embeddings(rows)), values.astype(table.numpy_dtype).astype("f4")
    )
    assert rows[:, 13:].tobytes() == before[:, 13:].tobytes()


def test_invalid_arrays_for_rounding_are_rejected() -> None:
    values = np.zeros((3, 4), np.float32)
    out = np.zeros((3, 4), np.float16)
    fixed = out.copy()
    fixed.flags.writeable = False
    refused: list[tuple[str, tuple[Any, ...]]] = [
        ("embeddings must be float32", (values.astype(np.float64), out)),
        ("values must have two dimensions", (values[0], out)),
        ("rows must be float16, bfloat16 or int8", (values, values.copy())),
        ("float64, float16, bfloat16 or int8", (values, np.zeros((3, 4), np.int16))),
        ("for 3 embeddings of dim 4, found 2 of dim 4", (values, out[:2])),
        ("for 3 embeddings of dim 4, found 3 of dim 5", (values, np.zeros((3, 5), np.float16))),
        ("for 3 embeddings of dim 4, found 3 of dim 2", (values, np.zeros((3, 4), np.int8))),
        ("at least 2 columns", (values, np.zeros((3, 1), np.int8))),
        ("contiguous", (values, np.zeros((3, 8), np.float16)[:, ::2])),
        ("writable", (values, fixed)),
        ("keys must have shape", (values, out, Rounding(np.arange(2), 0, 1))),
    ]
    for words, arguments in refused:
        with pytest.raises(InvalidArgumentError, match=words):
            kernels.encode(*arguments)
    assert not out.any()
    for rows in (values, np.zeros(3, np.float16), np.zeros((3, 4), np.uint16)):
        with pytest.raises(InvalidArgumentError):
            kernels.decode(rows)


@pytest.mark.parametrize("name", HALVES)
def test_empty_arrays_are_accepted(name: str) -> None:
    nothing = np.empty((0, 5), np.float32)
    assert encoded(nothing, name).shape == (0, 5)
    assert encoded(nothing, name, Rounding(np.empty(0, np.int64), 0, 1)).shape == (0, 5)
    assert kernels.decode(np.empty((0, 5), dtype_of(name))).shape == (0, 5)
