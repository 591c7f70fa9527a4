"""Initial values: their exact bits, their distribution, and that they depend on nothing else."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring import _native
from sparring.contracts.tables.initializers import (
    INITIALIZERS,
    Constant,
    Initializer,
    Normal,
    TruncatedNormal,
    Uniform,
    Xavier,
    Zeros,
    parse_initializer,
)
from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError
from sparring.kernels import functions as kernels

INT64 = np.iinfo(np.int64)
DTYPES = ["float32", "float64", "float16", "bfloat16"]
EXTREMES = [0, -1, -2, -3, 1, INT64.min, INT64.max]
RANDOM = [Uniform(-0.5, 0.25), Xavier(), Normal(0.5, 2.0), TruncatedNormal(-1.0, 0.1)]


# ---- a second implementation of include/sparring/initial_value.h in plain Python, whose floats are
# IEEE doubles and whose operations are not fused.

MASK32 = 2**32 - 1


def philox4x32_10(counter: list[int], key: list[int]) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [second >> 32 ^ c[1] ^ k[0], second & MASK32, first >> 32 ^ c[3] ^ k[1], first & MASK32]
        k = [k[0] + 0x9E3779B9 & MASK32, k[1] + 0xBB67AE85 & MASK32]
    return c


def mix64(bits: int) -> int:
    mask = 2**64 - 1
    bits = (bits ^ (bits >> 33)) * 0xFF51AFD7ED558CCD & mask
    bits = (bits ^ (bits >> 33)) * 0xC4CEB9FE1A85EC53 & mask
    return bits ^ (bits >> 33)


def fnv1a64(name: str) -> int:
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def unit_values(table: TableConfig, key: int) -> list[float]:
    name = fnv1a64(table.name)
    philox_key = mix64(table.seed % 2**64 ^ (name >> 32 | (name & MASK32) << 32))
    halves = [philox_key & MASK32, philox_key >> 32]
    words: list[int] = []
    for block in range((table.dim + 3) // 4):
        words += philox4x32_10([key % 2**64 & MASK32, key % 2**64 >> 32, block, 0], halves)
    return [(word + 0.5) * 2.0**-32 for word in words[: table.dim]]


def horner(coefficients: list[float], x: float) -> float:
    total = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def logarithm(x: float) -> float:
    mantissa, exponent = math.frexp(x)
    if mantissa < math.sqrt(0.5):
        mantissa, exponent = 2 * mantissa, exponent - 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    series = horner([1 / (2 * k + 1) for k in range(11)], s * s)
    return exponent * math.log(2.0) + s * 2.0 * series


CENTRAL_TOP = [3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
               1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
               3.3430575583588128105e4, 2.5090809287301226727e3]  # fmt: skip
CENTRAL_BOTTOM = [1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
                  2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
                  5.2264952788528545610e3]  # fmt: skip
TAIL_TOP = [1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
            3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
            2.27238449892691845833e-2, 7.74545014278341407640e-4]  # fmt: skip
TAIL_BOTTOM = [1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
               1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
               1.05075007164441684324e-9]  # fmt: skip


def normal(p: float) -> float:
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        return q * horner(CENTRAL_TOP, r) / horner(CENTRAL_BOTTOM, r)
    r = math.sqrt(-logarithm(p if q < 0 else 1.0 - p)) - 1.6
    return math.copysign(horner(TAIL_TOP, r) / horner(TAIL_BOTTOM, r), q)


def nearest_number(value: float, dtype: np.dtype[Any]) -> Any:
    """Rounds once to nearest, ties to even, with exact fractions."""
    if dtype.itemsize > 2:
        return dtype.type(value)
    # NumPy converts float64 to bfloat16 via float32, and so rounds twice.
    close = np.array(value, np.float32).astype(dtype)
    bits = int(close.view(np.uint16))
    around = [bits + step for step in (-1, 0, 1) if 0 <= bits + step < 2**16]
    numbers = np.array(around, np.uint16).view(dtype)
    return min(
        numbers[np.isfinite(numbers.astype(np.float64))],
        key=lambda number: (abs(Fraction(float(number)) - Fraction(value)), number.view("u2") % 2),
    )


def next_number(number: Any, *, up: bool) -> Any:
    bits = int(np.array(number).view(f"u{number.itemsize}"))
    sign = 1 << (8 * number.itemsize - 1)
    if bits & (sign - 1) == 0:
        bits = 1 if up else sign | 1
    else:
        bits += 1 if up == (bits < sign) else -1
    return np.array(bits, f"u{number.itemsize}").view(number.dtype)[()]


def expected_row(table: TableConfig, key: int) -> npt.NDArray[Any]:
    initializer = table.initializer
    assert isinstance(initializer, Initializer)
    first, second = initializer.parameters(table.dim)
    dtype = partial(nearest_number, dtype=table.numpy_dtype)
    values = unit_values(table, key)
    if isinstance(initializer, TruncatedNormal):
        low, high = 0.02275013194817921, 0.97724986805182079
        values = [first + normal(low + u * (high - low)) * second for u in values]
        lower, upper = float(dtype(first - 2 * second)), float(dtype(first + 2 * second))
        values = [min(max(value, lower), upper) for value in values]
    elif isinstance(initializer, Normal):
        values = [first + normal(u) * second for u in values]
    else:
        lower = upper = dtype(first)
        # As Python floats, because NumPy would round the bound to the dtype before the comparison.
        while not float(lower) > first:
            lower = next_number(lower, up=True)
        upper = dtype(second)
        while not float(upper) < second:
            upper = next_number(upper, up=False)
        lower, upper = float(lower), float(upper)
        values = [min(max(first + u * (second - first), lower), upper) for u in values]
    return np.array([dtype(value) for value in values], table.numpy_dtype)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # the test vectors of the Random123 library of the paper
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([MASK32] * 4, [MASK32] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_the_reference_generator_is_philox(counter: list[int], key: list[int], words: str) -> None:
    assert [f"{word:08x}" for word in philox4x32_10(counter, key)] == words.split()


@pytest.mark.usefixtures("simd_level")
@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(RANDOM),
    st.sampled_from(DTYPES),
    st.integers(1, 70),
    st.integers(int(INT64.min), int(INT64.max)),
    st.lists(st.integers(int(INT64.min), int(INT64.max)), max_size=5),
)
def test_rows_have_the_bits_that_the_format_defines(
    initializer: Initializer, dtype: str, dim: int, seed: int, keys: list[int]
) -> None:
    table = TableConfig("clicks.user", dim, dtype, initializer, seed=seed)
    keys += EXTREMES
    rows = kernels.initial_rows(keys, table)
    assert rows.dtype == table.numpy_dtype
    for row, key in zip(rows, keys, strict=True):
        assert row.tobytes() == expected_row(table, int(key)).tobytes()


GOLDEN = {
    ("uniform", "float32", 0): ("c51c9d3ce4a105bd479818bd203fb23c82cd37bd9f1e15bd"),
    ("uniform", "float64", -1): (
        "cdcccc976e279ebf989999769114903f686666332411943f"
        "3433b37b8896a03f686666fa8710783f3433333e812e9ebf"
    ),
    ("xavier", "float32", 2**63 - 1): ("da56af3dd21f603fe0b85abead76dbbedbec6c3f185c5b3f"),
    ("normal", "float32", 0): ("8624a43b85eb19bc87883abc03a4bc3bdac085bcf00434bc"),
    ("normal", "float64", -(2**63)): (
        "df3bdc050c5492bf19a1b5883fd9403f30707da119b891bf"
        "0ed956285fc2603f2c2ce67696d3793f4cc382821bbb9bbf"
    ),
    ("uniform", "float16", 0): "e9242da8c5a89225bea9a9a8",
    ("normal", "float16", 0): "211dcfa0d4a1e51d2ea4a0a1",
    ("truncated_normal", "float16", 0): "e11c85a06ea1991d7ea340a1",
    ("uniform", "bfloat16", 0): "9d3c06bd19bdb23c38bd15bd",
    ("normal", "bfloat16", 0): "a43b1abc3bbcbd3b86bc34bc",
    ("xavier", "bfloat16", 0): "b63e1bbf31bfce3e55bf2dbf",
    ("truncated_normal", "float32", 42): ("a60652bce46d83b96daba03baa68153c98c57ebb5fab1b3c"),
    ("truncated_normal", "float64", 193_609): (
        "e4e25283be3978bfe7570d86b56187bf8871df25c1ff5abf"
        "4841b5658659823ff016eeb999bf81bfba4a375a904475bf"
    ),
}


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize(("kind", "dtype", "key"), GOLDEN)
def test_the_format_never_drifts(kind: str, dtype: str, key: int) -> None:
    # Frozen, because snapshots and other machines depend on these bits. Never update them.
    table = TableConfig("movies", 6, dtype, kind, seed=-7)
    assert kernels.initial_rows([key], table).tobytes().hex() == GOLDEN[kind, dtype, key]


def test_the_format_hashes_table_names_by_their_utf8_bytes() -> None:
    assert _native.table_hash("") == 0xCBF29CE484222325
    assert _native.table_hash("a") == 0xAF63DC4C8601EC8C
    for name in ("movies", "users.2", "naïve-ü"):
        assert _native.table_hash(name) == fnv1a64(name)


@pytest.mark.usefixtures("simd_level")
def test_normal_deviates_are_accurate_out_to_the_tails() -> None:
    # The most extreme of two million words, and a sample of the rest.
    keys = np.arange(500_000)
    unit = kernels.initial_rows(keys, TableConfig("t", 4, "float64", Uniform(0.0, 1.0)))
    found = kernels.initial_rows(keys, TableConfig("t", 4, "float64", Normal(0.0, 1.0)))
    order = np.argsort(unit, axis=None)
    places = np.concatenate([order[:20], order[-20:], order[::5003]])
    inverse = NormalDist().inv_cdf
    expected = np.array([inverse(float(u)) for u in unit.ravel()[places]])
    assert np.abs(found.ravel()[places]).max() > 4.9
    assert np.allclose(found.ravel()[places], expected, rtol=1e-14, atol=1e-16)


def normal_distribution(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in x])


@pytest.mark.parametrize("initializer", RANDOM)
def test_values_follow_their_distribution(initializer: Initializer) -> None:
    count, dim = 12_500, 8
    first, second = initializer.parameters(dim)
    values = kernels.initial_rows(
        np.arange(count) * 1000, TableConfig("t", dim, "float64", initializer)
    )
    total = count * dim
    if isinstance(initializer, Normal):
        mean, deviation = first, second
        x = (np.sort(values, axis=None) - first) / second
        expected = normal_distribution(x)
        if isinstance(initializer, TruncatedNormal):
            ends = normal_distribution(np.array([-2.0, 2.0]))
            expected = (expected - ends[0]) / (ends[1] - ends[0])
            deviation = second * 0.87962566  # of a normal cut at two deviations
    else:
        mean, deviation = (first + second) / 2, (second - first) / math.sqrt(12)
        expected = (np.sort(values, axis=None) - first) / (second - first)
    assert abs(values.mean() - mean) < 4 * deviation / math.sqrt(total)
    assert abs(values.std() / deviation - 1) < 4 / math.sqrt(total)
    # Kolmogorov and Smirnov: beyond 1.95 / sqrt(n) one time in a thousand.
    steps = (np.arange(total) + 0.5) / total
    assert np.abs(steps - expected).max() < 1.95 / math.sqrt(total)


def test_consecutive_keys_seeds_and_tables_are_not_correlated() -> None:
    count, dim = 20_000, 8
    keys = np.arange(count)
    by_name = {
        "key": kernels.initial_rows(keys, TableConfig("t", dim, "float64", Normal(0.0, 1.0))),
        "next key": kernels.initial_rows(
            keys + 1, TableConfig("t", dim, "float64", Normal(0.0, 1.0))
        ),
        "next seed": kernels.initial_rows(
            keys, TableConfig("t", dim, "float64", Normal(0.0, 1.0), seed=1)
        ),
        "next table": kernels.initial_rows(
            keys, TableConfig("u", dim, "float64", Normal(0.0, 1.0))
        ),
    }
    columns = np.concatenate(list(by_name.values()), axis=1)
    correlations = np.corrcoef(columns, rowvar=False) - np.eye(columns.shape[1])
    # Column c of "next key" is column c of "key" in the next row; all others are unrelated.
    assert np.abs(correlations).max() < 5 / math.sqrt(count)


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("initializer", [Constant(0.1), Zeros(), *RANDOM])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_order_batch_and_threads_do_not_matter(initializer: Initializer, threads: int) -> None:
    table = TableConfig("t", 19, "float32", initializer)
    rng = np.random.default_rng(0)
    keys = rng.integers(INT64.min, INT64.max, 6_000)
    whole = kernels.initial_rows(keys, table)
    order = rng.permutation(len(keys))
    before = _native.pool_num_threads()
    _native.pool_configure(threads)
    try:
        assert np.array_equal(kernels.initial_rows(keys[order], table), whole[order])
    finally:
        _native.pool_configure(before)
    for i in (0, 1, 5_999):
        assert np.array_equal(kernels.initial_rows(keys[i : i + 1], table)[0], whole[i])


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 3, 4, 5, 8, 21, 64])
def test_only_missing_rows_are_written(dim: int, dtype: str) -> None:
    table = TableConfig("t", dim, dtype, Normal(1.0, 1.0)).with_state(3)
    keys = np.arange(100)
    found = np.random.default_rng(0).random(100) < 0.6
    rows = np.full((100, table.width), 7.0, table.numpy_dtype)
    state = np.array([0.5, -0.0, 2.0], table.computing_dtype)
    kernels.initialize(rows, keys, found, kernels.initializer_spec(table), state)
    assert np.all(rows[found] == 7.0)
    made = rows[~found]
    assert np.array_equal(table.embeddings(made), kernels.initial_rows(keys[~found], table))
    assert table.state(made).tobytes() == np.tile(state, (len(made), 1)).tobytes()
    gap = made.view(np.uint8)[:, dim * table.numpy_dtype.itemsize : table.state_begin]
    assert not gap.any()
    kernels.initialize(rows, keys, found, kernels.initializer_spec(table))
    assert not rows[~found, dim:].any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("low", "high"),
    [(-0.05, 0.05), (0.0, 0.1), (0.1, 0.3), (1.0, 1.0 + 3e-7), (-1e30, -9e29), (0.0, 1e-44)],
)
def test_uniform_stays_inside_its_open_interval(low: float, high: float, dtype: str) -> None:
    values = kernels.initial_rows(np.arange(50_000), TableConfig("t", 8, dtype, Uniform(low, high)))
    # As exact fractions, so that no comparison rounds.
    assert Fraction(low) < Fraction(float(values.min()))
    assert Fraction(float(values.max())) < Fraction(high)
    assert len(np.unique(values)) > 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("low", "high"), [(-0.05, 0.05), (0.0, 0.1), (-1.0, 0.0), (1.0, 1.02), (-60_000.0, -6_000.0)]
)
def test_uniform_of_16_bits_stays_inside_its_open_interval(
    low: float, high: float, dtype: str
) -> None:
    table = TableConfig("t", 8, dtype, Uniform(low, high))
    values = kernels.initial_rows(np.arange(50_000), table).astype(np.float64)
    assert low < values.min() < values.max() < high


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_doubles_are_rounded_to_16_bits_once(dtype: str) -> None:
    # Halfway between two numbers, next to it by less than float32 can represent, and tiny numbers.
    halfway = [1 + 2.0**-11, 1 + 2.0**-8, 3 * 2.0**-25, 2.0**-25, 65_519.99999, 2.0**-133]
    doubles = [sign * value for value in halfway for sign in (1, -1)]
    doubles += [np.nextafter(value, to) for value in doubles for to in (math.inf, -math.inf)]
    doubles += [value * 3 for value in doubles] + [1e-39, 1e-41, -3e-40, 1e-310, 0.0, -0.0]
    for value in doubles:
        if dtype == "float16" and abs(value) > 65_504:
            continue
        for initializer in (Constant(value), Normal(value, 0.0)):
            table = TableConfig("t", 5, dtype, initializer)
            found = kernels.initial_rows([3], table)[0]
            expected = nearest_number(value, table.numpy_dtype)
            assert found.astype(np.float64).tolist() == [float(expected)] * 5, (value, initializer)


def test_uniform_between_neighboring_floats_gives_the_nearest() -> None:
    table = TableConfig("t", 4, "float32", Uniform(1.0, 1.0 + 1e-9))
    assert np.all(kernels.initial_rows(np.arange(100), table) == 1.0)


def test_truncated_normal_stays_within_two_deviations() -> None:
    table = TableConfig("t", 8, "float64", TruncatedNormal(3.0, 0.5))
    values = kernels.initial_rows(np.arange(100_000), table)
    assert 2.0 <= values.min() < 2.001
    assert 3.999 < values.max() <= 4.0


def test_constants_and_zeros() -> None:
    assert np.all(kernels.initial_rows([1, 2], TableConfig("t", 5, initializer=Zeros())) == 0)
    rows = kernels.initial_rows([1, 2], TableConfig("t", 5, initializer=Constant(0.1)))
    assert np.all(rows == np.float32(0.1))
    assert not kernels.initial_rows([1], TableConfig("t", 5, initializer=Normal(0.0, 0.0))).any()


def test_xavier_shrinks_with_the_dim() -> None:
    for dim in (1, 15, 95):
        limit = math.sqrt(6 / (1 + dim))
        values = kernels.initial_rows(
            np.arange(20_000), TableConfig("t", dim, initializer=Xavier())
        )
        assert 0.99 * limit < np.abs(values).max() < limit


def test_every_initializer_is_known_to_the_native_kernel() -> None:
    for kind in INITIALIZERS:
        assert kernels.initial_rows([5], TableConfig("t", 3, initializer=kind)).shape == (1, 3)


@pytest.mark.parametrize("initializer", [*RANDOM, Zeros(), Constant(2.0)])
def test_an_initializer_survives_a_round_trip_through_a_config(initializer: Initializer) -> None:
    assert parse_initializer(initializer.as_dict()) == initializer


@pytest.mark.parametrize(
    "make",
    [
        lambda: Uniform(1.0, 1.0),
        lambda: Uniform(math.nan, 1.0),
        lambda: Normal(0.0, -1.0),
        lambda: Xavier(0.0),
        lambda: parse_initializer("gauss"),
        lambda: parse_initializer({"kind": "normal", "std": 1.0}),
        lambda: kernels.initializer_spec(TableConfig("t", 2, initializer=Constant(math.nan))),
        lambda: kernels.initializer_spec(TableConfig("t", 2, initializer=Normal(math.inf, 1.0))),
        lambda: kernels.initializer_spec(TableConfig("t", 2, initializer=Uniform(-1e308, 1e308))),
    ],
)
def test_impossible_initializers_are_rejected(make: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        make()


def test_rows_that_cannot_be_filled_are_rejected() -> None:
    spec = kernels.initializer_spec(TableConfig("t", 4))
    keys, missing = np.arange(3), np.zeros(3, np.bool_)
    rows = np.zeros((3, 6), np.float32)
    fixed = rows.copy()
    fixed.flags.writeable = False
    refused: list[tuple[str, tuple[Any, ...]]] = [
        ("read-only", (fixed, keys, missing, spec)),
        ("C-contiguous", (np.asfortranarray(rows), keys, missing, spec)),
        ("at least 4", (rows[:, :3].copy(), keys, missing, spec)),
        ("rows must have shape", (rows[:2], keys, missing, spec)),
        ("found must be bool", (rows, keys, missing.astype(np.int8), spec)),
        ("found must have shape", (rows, keys, missing[:2], spec)),
        ("state must have shape", (rows, keys, missing, spec, np.zeros(3, np.float32))),
        ("state must be float32", (rows, keys, missing, spec, np.zeros(2))),
    ]
    for words, arguments in refused:
        with pytest.raises(InvalidArgumentError, match=words):
            kernels.initialize(*arguments)
    assert not rows.any()
