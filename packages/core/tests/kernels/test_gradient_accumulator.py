"""GradientAccumulator: sums of gradients by key over micro-batches."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring import _native
from sparring._native import GradientAccumulator
from sparring.errors import InvalidArgumentError

INT64 = np.iinfo(np.int64)


some_keys = st.lists(
    st.one_of(st.integers(0, 10), st.sampled_from([int(INT64.min), int(INT64.max), -1])),
    unique=True,
)


@settings(deadline=None)
@given(st.lists(some_keys, max_size=5), st.integers(1, 20), st.sampled_from(["float32", "float64"]))
def test_gradients_add_up_by_key_in_the_order_of_batches(
    batches: list[list[int]], dim: int, dtype: str
) -> None:
    rng = np.random.default_rng(0)
    accumulator = GradientAccumulator(dim, dtype)
    expected: dict[int, Any] = {}
    for keys in batches:
        gradients = rng.standard_normal((len(keys), dim)).astype(dtype)
        accumulator.add(np.array(keys, np.int64), gradients)
        for key, gradient in zip(keys, gradients, strict=True):
            expected[key] = expected[key] + gradient if key in expected else gradient
        assert accumulator.size == len(accumulator) == len(expected)
    taken, sums = accumulator.take()
    assert taken.tolist() == list(expected)
    assert sums.dtype == dtype
    assert sums.shape == (len(expected), dim)
    for i, gradient in enumerate(expected.values()):
        assert np.array_equal(sums[i], gradient)


@pytest.mark.usefixtures("pool_threads")
@pytest.mark.parametrize("level", _native.simd_levels())
def test_large_batches_have_the_same_bits_for_any_thread_count(level: str) -> None:
    before = _native.simd_level()
    _native.set_simd_level(level)
    try:
        rng = np.random.default_rng(0)
        accumulator = GradientAccumulator(24, "float32")
        total = np.zeros((60_000, 24), np.float32)
        for _ in range(4):
            keys = rng.permutation(60_000)[:30_000]
            gradients = rng.standard_normal((30_000, 24)).astype(np.float32)
            accumulator.add(keys, gradients)
            total[keys] += gradients
        keys, sums = accumulator.take()
        assert len(np.unique(keys)) == len(keys)
        assert np.array_equal(sums, total[keys])
        rest = np.ones(60_000, np.bool_)
        rest[keys] = False
        assert not total[rest].any()
    finally:
        _native.set_simd_level(before)


def test_take_resets_the_sums_and_its_arrays_stay_valid() -> None:
    accumulator = GradientAccumulator(2)
    ones = np.ones((2, 2), np.float32)
    accumulator.add(np.array([1, 2]), ones)
    accumulator.add(np.array([2, 3]), ones)
    keys, sums = accumulator.take()
    assert accumulator.size == 0
    accumulator.add(np.array([3, 9]), 5 * ones)
    accumulator.add(np.array([9, 1]), 5 * ones)
    assert keys.tolist() == [1, 2, 3]
    assert sums[:, 0].tolist() == [1, 2, 1]
    keys, sums = accumulator.take()
    assert keys.tolist() == [3, 9, 1]
    assert sums[:, 0].tolist() == [5, 10, 5]
    del accumulator
    sums += 1  # the array owns its memory
    assert sums.flags.writeable


def test_add_copies_its_arguments() -> None:
    accumulator = GradientAccumulator(1)
    keys, gradients = np.array([4]), np.ones((1, 1), np.float32)
    accumulator.add(keys, gradients)
    keys[0], gradients[0] = 5, 7
    taken, sums = accumulator.take()
    assert (taken.tolist(), sums.tolist()) == ([4], [[1.0]])


def test_clear_drops_sums_and_memory() -> None:
    accumulator = GradientAccumulator(8)
    assert accumulator.memory_bytes == 0
    accumulator.add(np.arange(1000), np.ones((1000, 8), np.float32))
    held = 1000 * (8 + 8 * 4)
    assert held <= accumulator.memory_bytes <= 1.5 * held
    accumulator.add(np.arange(1000), np.ones((1000, 8), np.float32))
    assert accumulator.memory_bytes > held
    accumulator.clear()
    assert (accumulator.size, accumulator.memory_bytes) == (0, 0)
    keys, sums = accumulator.take()
    assert (keys.shape, sums.shape) == ((0,), (0, 8))


def test_threads_may_add_at_the_same_time() -> None:
    accumulator = GradientAccumulator(4, "float64")
    keys, ones = np.arange(3_000), np.ones((3_000, 4))

    def add_repeatedly() -> None:
        for _ in range(20):
            accumulator.add(keys, ones)

    workers = [threading.Thread(target=add_repeatedly) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    _, sums = accumulator.take()
    assert np.all(sums == 80)


def test_mismatched_arrays_are_rejected_and_add_nothing() -> None:
    accumulator = GradientAccumulator(3)
    refused: list[tuple[str, Any]] = [
        ("gradients must have shape", (np.arange(2), np.ones((2, 4), np.float32))),
        ("gradients must have shape", (np.arange(3), np.ones((2, 3), np.float32))),
        ("gradients must be float32", (np.arange(2), np.ones((2, 3)))),
        ("keys must be int64", (np.arange(2.0), np.ones((2, 3), np.float32))),
    ]
    for words, arguments in refused:
        with pytest.raises(InvalidArgumentError, match=words):
            accumulator.add(*arguments)
    assert accumulator.size == 0
    with pytest.raises(InvalidArgumentError, match="dtype"):
        GradientAccumulator(3, "float16")
    with pytest.raises(InvalidArgumentError, match="dim"):
        GradientAccumulator(0)
