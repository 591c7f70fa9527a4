"""is_finite and finite_rows, and the choice of the SIMD level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring import _native
from sparring.errors import InvalidArgumentError
from sparring.kernels import functions as kernels
from sparring_testing.processes.child_processes import run_script

LEVELS = _native.simd_levels()
PROGRAM = """
    from sparring.kernels import functions as kernels

    kernels.is_finite([1.0])
    print(kernels.simd_level())
"""


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_value_that_is_not_finite_is_found_at_any_position(dtype: Any) -> None:
    finfo = np.finfo(dtype)
    fine = np.array([0.0, -0.0, finfo.max, finfo.min, finfo.tiny, finfo.smallest_subnormal], dtype)
    bad = np.array([np.inf, -np.inf, np.nan], dtype)
    for size in [1, 2, 7, 8, 15, 16, 63, 64, 65, 300, 10_000]:
        values = np.resize(fine, size)
        assert kernels.is_finite(values)
        places = range(size) if size <= 300 else [0, 4_095, 4_096, 5_000, size - 1]
        for place in places:
            kept = values[place]
            values[place] = bad[place % 3]
            assert not kernels.is_finite(values)
            values[place] = kept
    assert kernels.is_finite(np.zeros((0, 4), dtype))
    assert kernels.is_finite(np.zeros((30, 40), dtype)[:, ::2])


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (50, 1), (50, 33), (20_000, 64)])
def test_finite_rows_names_the_rows(shape: tuple[int, int], dtype: Any) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(shape).astype(dtype)
    num_bad = shape[0] // 10
    values[rng.integers(0, max(1, shape[0]), num_bad), rng.integers(0, shape[1], num_bad)] = np.nan
    finite = kernels.finite_rows(values)
    assert finite.dtype == np.bool_
    assert np.array_equal(finite, np.isfinite(values).all(axis=1))


def test_a_large_array_is_searched_to_its_end_by_any_number_of_threads() -> None:
    values = np.zeros(3_000_001, np.float32)
    before = _native.pool_num_threads()
    try:
        for threads in (1, 4):
            _native.pool_configure(threads)
            for place in (0, 1_500_000, 3_000_000):
                values[place] = np.nan
                assert not kernels.is_finite(values)
                values[place] = 0
            assert kernels.is_finite(values)
    finally:
        _native.pool_configure(before)


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 7, 64, 5_000])
def test_values_may_be_at_any_memory_address(dtype: Any, size: int) -> None:
    item = np.dtype(dtype).itemsize
    memory = np.zeros((size + 1) * item, np.uint8)
    for offset in (1, item // 2, item - 1):
        values = memory[offset : offset + size * item].view(dtype)
        assert not values.flags.aligned
        # Loads require aligned elements, so unaligned arrays are copied or rejected.
        with pytest.raises(InvalidArgumentError, match="aligned"):
            _native.is_finite(values)
        for place in {0, size // 2, size - 1}:
            values[:] = 1
            assert kernels.is_finite(values)
            values[place] = np.nan
            assert not kernels.is_finite(values)
    # Elements are aligned, but vectors are not.
    for start in range(1, 9):
        assert _native.is_finite(np.ones(size + start, dtype)[start:])


def test_only_floats_can_be_finite() -> None:
    with pytest.raises(InvalidArgumentError, match="float32 or float64"):
        kernels.is_finite(np.arange(3))
    with pytest.raises(InvalidArgumentError, match="two dimensions"):
        kernels.finite_rows(np.zeros(3))


@pytest.mark.parametrize("level", LEVELS)
def test_the_environment_chooses_the_level(level: str) -> None:
    assert run_script(PROGRAM, SPARRING_SIMD=level).stdout.split() == [level]


def test_the_fastest_level_is_the_default() -> None:
    assert run_script(PROGRAM, SPARRING_SIMD="").stdout.split() == [LEVELS[-1]]


def test_an_unknown_level_is_rejected_and_changes_nothing() -> None:
    before = kernels.simd_level()
    with pytest.raises(InvalidArgumentError, match=f"'sse9'.*{', '.join(LEVELS)}"):
        kernels.set_simd_level("sse9")
    assert kernels.simd_level() == before
    result = run_script(PROGRAM, SPARRING_SIMD="sse9")
    assert result.returncode != 0
    assert "InvalidArgumentError: environment variable SPARRING_SIMD" in result.stderr
