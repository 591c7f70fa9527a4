"""gather, pool and its gradients, segment_sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring import _native
from sparring.errors import InvalidArgumentError
from sparring.kernels import functions as kernels

DTYPES = [np.float32, np.float64]
# Dims around every vector length, and some common ones.
DIMS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 33, 64, 100, 128, 200]
SOME_DIMS = pytest.mark.parametrize(
    "dim",
    [pytest.param(dim, marks=[] if dim in {1, 4, 7, 33} else pytest.mark.slow) for dim in DIMS],
)


@dataclass
class Batch:
    rows: npt.NDArray[Any]
    inverse: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    weights: npt.NDArray[Any]
    gradient: npt.NDArray[Any]

    @property
    def bags(self) -> npt.NDArray[np.int64]:
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @property
    def shares(self) -> npt.NDArray[Any]:
        """The factor of each occurrence in a mean."""
        lengths = np.diff(self.offsets)[self.bags]
        return (1 / lengths.astype(self.rows.dtype)).astype(self.rows.dtype)


pytestmark = pytest.mark.usefixtures("simd_level")


def make_batch(
    lengths: list[int], num_rows: int, dim: int, dtype: Any = np.float64, seed: int = 0
) -> Batch:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    count = int(offsets[-1])
    # Squared, so that some rows are much more frequent than others.
    inverse = (num_rows * rng.random(count) ** 2).astype(np.int64)
    return Batch(
        rng.standard_normal((num_rows, dim)).astype(dtype),
        inverse,
        offsets,
        rng.standard_normal(count).astype(dtype),
        rng.standard_normal((len(lengths), dim)).astype(dtype),
    )


def ordered_sum(
    terms: npt.NDArray[Any], targets: npt.NDArray[np.int64], num_rows: int
) -> npt.NDArray[Any]:
    """Sums terms per target, one after the other: np.add.at is not buffered."""
    out = np.zeros((num_rows, terms.shape[1]), terms.dtype)
    np.add.at(out, targets, terms)
    return out


def expected_pool(batch: Batch, mode: str, weights: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    terms = batch.rows[batch.inverse]
    if weights is not None:
        terms = terms * weights[:, None]
    out = ordered_sum(terms, batch.bags, len(batch.offsets) - 1)
    if mode == "mean":
        out /= np.maximum(1, np.diff(batch.offsets)).astype(out.dtype)[:, None]
    return out


def expected_backward(
    batch: Batch, mode: str, weights: npt.NDArray[Any] | None
) -> npt.NDArray[Any]:
    terms = batch.gradient[batch.bags]
    if weights is not None:
        terms = terms * (weights * batch.shares if mode == "mean" else weights)[:, None]
    elif mode == "mean":
        terms = terms * batch.shares[:, None]
    return ordered_sum(terms, batch.inverse, len(batch.rows))


batches = st.builds(
    make_batch,
    st.lists(st.integers(0, 6), max_size=12),
    st.integers(1, 9),
    st.sampled_from(DIMS),
    st.sampled_from(DTYPES),
    st.integers(0, 2**32 - 1),
)
modes = st.sampled_from(["sum", "mean"])


@settings(deadline=None, max_examples=30)
@given(batches, modes, st.booleans())
def test_pool_has_the_bits_of_sums_taken_in_order(
    batch: Batch, mode: Any, is_weighted: bool
) -> None:
    weights = batch.weights if is_weighted else None
    out = kernels.pool(batch.rows, batch.inverse, batch.offsets, mode=mode, weights=weights)
    assert out.dtype == batch.rows.dtype
    assert np.array_equal(out, expected_pool(batch, mode, weights))


@settings(deadline=None, max_examples=30)
@given(batches, modes, st.booleans())
def test_pool_backward_has_the_bits_of_sums_taken_in_order(
    batch: Batch, mode: Any, is_weighted: bool
) -> None:
    weights = batch.weights if is_weighted else None
    out = kernels.pool_backward(
        batch.gradient, batch.inverse, batch.offsets, len(batch.rows), mode=mode, weights=weights
    )
    assert np.array_equal(out, expected_backward(batch, mode, weights))


@settings(deadline=None, max_examples=30)
@given(batches, modes)
def test_pool_weight_gradient_is_a_dot_product(batch: Batch, mode: Any) -> None:
    out = kernels.pool_weight_gradient(
        batch.gradient, batch.rows, batch.inverse, batch.offsets, mode=mode
    )
    terms = batch.gradient[batch.bags].astype(np.float64) * batch.rows[batch.inverse]
    expected = terms.sum(axis=1) * (batch.shares if mode == "mean" else 1)
    # A sum of dim products rounds by at most that many units in the last place.
    bound = np.abs(terms).sum(axis=1) * terms.shape[1] * np.finfo(batch.rows.dtype).eps
    assert np.all(np.abs(out - expected) <= bound)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_gradients_agree_with_finite_differences(mode: Any) -> None:
    batch = make_batch([2, 0, 3, 1], 4, 5)

    def loss(rows: npt.NDArray[Any], weights: npt.NDArray[Any]) -> float:
        out = kernels.pool(rows, batch.inverse, batch.offsets, mode=mode, weights=weights)
        return float((out * batch.gradient).sum())

    rows_gradient = kernels.pool_backward(
        batch.gradient, batch.inverse, batch.offsets, 4, mode=mode, weights=batch.weights
    )
    weights_gradient = kernels.pool_weight_gradient(
        batch.gradient, batch.rows, batch.inverse, batch.offsets, mode=mode
    )
    for array, gradient in ((batch.rows, rows_gradient), (batch.weights, weights_gradient)):
        for place in np.ndindex(array.shape):
            kept = array[place]
            array[place] = kept + 0.5
            above = loss(batch.rows, batch.weights)
            array[place] = kept - 0.5
            below = loss(batch.rows, batch.weights)
            array[place] = kept
            # The loss is linear in each weight, so the difference is exact except for rounding.
            assert above - below == pytest.approx(gradient[place], abs=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@SOME_DIMS
def test_gather_copies_rows(dim: int, dtype: Any) -> None:
    batch = make_batch([50], 7, dim, dtype)
    expected = batch.rows[batch.inverse]
    assert np.array_equal(kernels.gather(batch.rows, batch.inverse), expected)
    out = np.full((50, dim), np.nan, dtype)
    assert kernels.gather(batch.rows, batch.inverse, out) is out
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@SOME_DIMS
def test_segment_sum_has_the_bits_of_sums_taken_in_order(dim: int, dtype: Any) -> None:
    rng = np.random.default_rng(dim)
    values = rng.standard_normal((300, dim)).astype(dtype)
    segments = rng.integers(0, 40, 300) // 2 * 2  # odd segments stay empty
    out = kernels.segment_sum(values, segments, 41)
    assert np.array_equal(out, ordered_sum(values, segments, 41))
    assert not out[1::2].any()


@pytest.mark.usefixtures("pool_threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "dim"), [(3, 70), (5_000, 16), (20_000, 3)])
def test_large_batches_have_the_same_bits_for_any_thread_count(
    num_rows: int, dim: int, dtype: Any
) -> None:
    lengths = np.random.default_rng(1).integers(0, 9, 3_000)
    lengths[:300] = 0
    lengths[17] = 4_000
    batch = make_batch(lengths.tolist(), num_rows, dim, dtype)
    index = (batch.inverse, batch.offsets)
    for mode, weights in (("sum", None), ("mean", None), ("mean", batch.weights)):
        out = _native.pool(batch.rows, *index, mode, weights)
        assert np.array_equal(out, expected_pool(batch, mode, weights))
        out = _native.pool_backward(batch.gradient, *index, num_rows, mode, weights)
        assert np.array_equal(out, expected_backward(batch, mode, weights))
    gathered = _native.gather(batch.rows, batch.inverse)
    assert np.array_equal(gathered, batch.rows[batch.inverse])
    out = _native.segment_sum(gathered, batch.inverse, num_rows)
    assert np.array_equal(out, ordered_sum(gathered, batch.inverse, num_rows))


@pytest.mark.usefixtures("pool_threads")
def test_weight_gradient_has_the_same_bits_at_every_level_and_thread_count() -> None:
    batch = make_batch([3] * 20_000, 5_000, 37, np.float32)
    out = _native.pool_weight_gradient(batch.gradient, batch.rows, batch.inverse, batch.offsets)
    # The order defined by level_rows.inc: lanes of a 64-byte block, then halves.
    products = batch.gradient[batch.bags] * batch.rows[batch.inverse]
    lanes = products[:, :16] + products[:, 16:32]
    lanes[:, :5] += products[:, 32:]
    for half in (8, 4, 2, 1):
        lanes = lanes[:, :half] + lanes[:, half:]
    assert np.array_equal(out, lanes[:, 0])


def test_empty_calls_give_empty_results() -> None:
    rows = np.zeros((0, 4), np.float32)
    assert kernels.gather(rows, []).shape == (0, 4)
    assert kernels.pool(rows, [], [0]).shape == (0, 4)
    assert np.array_equal(kernels.pool(rows, [], [0, 0, 0]), np.zeros((2, 4)))
    assert kernels.pool_backward(np.ones((2, 4)), [], [0, 0, 0], 3, mode="mean").tolist() == (
        np.zeros((3, 4)).tolist()
    )
    assert kernels.pool_weight_gradient(rows, rows, [], [0]).shape == (0,)
    assert kernels.segment_sum(rows, [], 0).shape == (0, 4)


ROWS = np.zeros((3, 4), np.float32)


@pytest.mark.parametrize("place", [-1, 3, 2**62, -(2**63)])
def test_an_index_out_of_range_is_rejected(place: int) -> None:
    inverse = np.zeros(2_000, np.int64)
    inverse[1_500] = place
    offsets = [0, 2_000]
    calls: list[Callable[[], object]] = [
        lambda: kernels.gather(ROWS, inverse),
        lambda: kernels.pool(ROWS, inverse, offsets),
        lambda: kernels.pool_backward(ROWS[:1], inverse, offsets, 3),
        lambda: kernels.pool_weight_gradient(ROWS[:1], ROWS, inverse, offsets),
        lambda: kernels.segment_sum(np.zeros((2_000, 1)), inverse, 3),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=rf"\[0, 3\), found {place} at place 1500"):
            call()


@pytest.mark.parametrize(
    "offsets", [[], [1, 2], [0, 1], [0, 3], [0, 2, 1, 2], [0, 5, 2], [-1, 2], [0, -1, 2]]
)
def test_offsets_that_do_not_cover_the_ids_are_rejected(offsets: list[int]) -> None:
    inverse = [0, 1]
    bags = ROWS[: max(0, len(offsets) - 1)]
    with pytest.raises(InvalidArgumentError, match="offsets"):
        kernels.pool(ROWS, inverse, offsets)
    with pytest.raises(InvalidArgumentError, match="offsets"):
        kernels.pool_backward(bags, inverse, offsets, 3)
    with pytest.raises(InvalidArgumentError, match="offsets"):
        kernels.pool_weight_gradient(bags, ROWS, inverse, offsets)


def test_shapes_and_dtypes_that_do_not_fit_are_rejected() -> None:
    refused: list[tuple[str, Any]] = [
        ("float32 or float64", lambda: kernels.gather(ROWS.astype(np.int32), [0])),
        ("two dimensions", lambda: kernels.gather(ROWS[0], [0])),
        ("no fraction", lambda: kernels.gather(ROWS, [0.5])),
        ("out must have shape", lambda: kernels.gather(ROWS, [0], np.zeros((2, 4), np.float32))),
        ("out must be float32", lambda: kernels.gather(ROWS, [0], np.zeros((1, 4)))),
        ("overlaps", lambda: kernels.gather(ROWS, [0], ROWS[1:2])),
        ("mode", lambda: kernels.pool(ROWS, [0], [0, 1], mode="max")),  # type: ignore[arg-type]
        ("weights", lambda: kernels.pool(ROWS, [0], [0, 1], weights=np.ones(2, np.float32))),
        ("weights", lambda: kernels.pool(ROWS, [0], [0, 1], weights=np.ones(1))),
        ("gradient", lambda: kernels.pool_backward(ROWS, [0], [0, 1], 3)),
        ("gradient", lambda: kernels.pool_weight_gradient(ROWS[:1, :2], ROWS, [0], [0, 1])),
        ("num_rows", lambda: kernels.pool_backward(ROWS[:1], [], [0, 0], -1)),
        ("segments must have shape", lambda: kernels.segment_sum(ROWS, [0, 1], 2)),
    ]
    for words, call in refused:
        with pytest.raises(InvalidArgumentError, match=words):
            call()


def test_the_native_functions_reject_arrays_that_they_cannot_read_in_place() -> None:
    inverse = np.zeros(2, np.int64)
    with pytest.raises(InvalidArgumentError, match="C-contiguous"):
        _native.gather(np.zeros((3, 8), np.float32)[:, ::2], inverse)
    with pytest.raises(InvalidArgumentError, match="int64"):
        _native.gather(ROWS, inverse.astype(np.int32))
    with pytest.raises(InvalidArgumentError, match="float32"):
        _native.gather(ROWS.astype(">f4"), inverse)
    out = np.zeros((2, 4), np.float32)
    out.flags.writeable = False
    with pytest.raises(InvalidArgumentError, match="read-only"):
        _native.gather(ROWS, inverse, out)
