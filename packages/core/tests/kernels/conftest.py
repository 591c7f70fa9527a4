"""SIMD levels and numbers of threads with which kernels are tested."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparring import _native
from sparring.kernels import functions as kernels


@pytest.fixture(params=_native.simd_levels())
def simd_level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each SIMD level of this machine."""
    before = kernels.simd_level()
    kernels.set_simd_level(request.param)
    yield request.param
    kernels.set_simd_level(before)


@pytest.fixture(
    params=[1, 3, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 4))],
    ids="{} threads".format,
)
def pool_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Numbers of threads of the pool."""
    before = _native.pool_num_threads()
    _native.pool_configure(request.param)
    yield request.param
    _native.pool_configure(before)
