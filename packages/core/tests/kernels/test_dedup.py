"""dedup, partition and route."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring import _native
from sparring.errors import InvalidArgumentError
from sparring.kernels import functions as kernels

from .test_initializers import mix64

INT64 = np.iinfo(np.int64)
EXTREMES = [0, -1, -2, -3, 1, INT64.min, INT64.max]

# Few distinct ids, so that they repeat; any int64, so that none is special.
id_lists = st.lists(
    st.one_of(
        st.integers(0, 20), st.sampled_from(EXTREMES), st.integers(int(INT64.min), int(INT64.max))
    )
)


def expected_dedup(ids: npt.NDArray[np.int64]) -> tuple[list[int], list[int]]:
    numbers: dict[int, int] = {}
    inverse = [numbers.setdefault(int(i), len(numbers)) for i in ids]
    return list(numbers), inverse


@given(id_lists)
def test_dedup_gives_keys_in_order_of_first_occurrence(ids: list[int]) -> None:
    result = kernels.dedup(np.array(ids, np.int64))
    keys, inverse = expected_dedup(np.array(ids, np.int64))
    assert result.keys.tolist() == keys
    assert result.inverse.tolist() == inverse
    assert result.keys.dtype == result.inverse.dtype == np.int64


@pytest.mark.usefixtures("pool_threads")
@pytest.mark.parametrize("num_ids", [1, 1_000, 40_000, 600_000])
@pytest.mark.parametrize("num_distinct", [1, 300, 10**9])
def test_dedup_of_large_batches_is_the_same_for_any_thread_count(
    num_ids: int, num_distinct: int
) -> None:
    rng = np.random.default_rng(num_ids)
    ids = rng.integers(-num_distinct, num_distinct, num_ids) * 4096
    ids[rng.integers(0, num_ids, len(EXTREMES))] = EXTREMES
    result = kernels.dedup(ids)
    assert np.array_equal(result.keys[result.inverse], ids)
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    assert np.array_equal(result.keys, ids[first[order]])
    assert np.array_equal(result.inverse, rank[inverse])


def test_dedup_does_not_depend_on_earlier_calls() -> None:
    for _ in range(3):
        assert kernels.dedup([7, 8, 7]).keys.tolist() == [7, 8]
        assert kernels.dedup([8]).keys.tolist() == [8]
        assert kernels.dedup(np.arange(5_000)).keys.tolist() == list(range(5_000))


def test_dedup_accepts_narrow_integers_and_strided_arrays() -> None:
    ids = np.array([3, 9, 4, 9, 3, 9], np.uint8)
    assert kernels.dedup(ids[::2]).keys.tolist() == [3, 4]
    assert kernels.dedup([]).keys.dtype == np.int64


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (np.array([1.0, 2.0]), "int64"),
        (np.array([2**63], np.uint64), "must fit int64"),
        (np.zeros((2, 2), np.int64), "one dimension"),
        (["a"], "int64"),
    ],
)
def test_dedup_rejects_invalid_ids(ids: npt.ArrayLike, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        kernels.dedup(ids)


@given(id_lists)
def test_partition_is_the_top_bits_of_mix64(keys: list[int]) -> None:
    assert kernels.partition(np.array(keys, np.int64)).tolist() == [
        mix64(k % 2**64) >> 52 for k in keys
    ]


def test_partition_never_drifts() -> None:
    keys = [*EXTREMES, 42, 193_609, 10**18]
    frozen = [0, 1611, 936, 2723, 2885, 2295, 2747, 2064, 2696, 1640]
    assert kernels.partition(keys).tolist() == frozen


def test_partition_spreads_consecutive_keys_evenly() -> None:
    counts = np.bincount(kernels.partition(np.arange(409_600)), minlength=4096)
    # Mean 100, standard deviation 10.
    assert len(counts) == 4096
    assert counts.min() > 50
    assert counts.max() < 160


@settings(deadline=None)
@given(id_lists, st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_route_groups_keys_by_owner_and_keeps_their_order(
    ids: list[int], world_size: int, seed: int
) -> None:
    keys = kernels.dedup(np.array(ids, np.int64)).keys
    owners = np.random.default_rng(seed).integers(0, world_size, 4096).astype(np.int32)
    result = kernels.route(keys, owners, world_size)
    ranks = owners[kernels.partition(keys)]
    assert result.order.tolist() == np.argsort(ranks, kind="stable").tolist()
    assert np.diff(result.offsets).tolist() == np.bincount(ranks, minlength=world_size).tolist()
    assert result.offsets[0] == 0


@pytest.mark.usefixtures("pool_threads")
def test_route_of_many_keys_is_the_same_for_any_thread_count() -> None:
    keys = np.random.default_rng(0).integers(INT64.min, INT64.max, 200_000)
    owners = np.arange(4096, dtype=np.int32) % 7
    result = kernels.route(keys, owners, 7)
    ranks = owners[kernels.partition(keys)]
    assert np.array_equal(result.order, np.argsort(ranks, kind="stable"))


@pytest.mark.parametrize("owner", [-1, 2, 2**31 - 1, -(2**31), 2**40])
def test_route_rejects_an_owner_outside_the_world(owner: int) -> None:
    owners = np.zeros(4096, np.int64)
    owners[17] = owner
    with pytest.raises(InvalidArgumentError, match="owners"):
        kernels.route([1], owners, 2)


def test_route_rejects_another_number_of_partitions() -> None:
    with pytest.raises(InvalidArgumentError, match="4096"):
        kernels.route([1], np.zeros(4095, np.int32), 1)
    with pytest.raises(InvalidArgumentError, match="world_size"):
        kernels.route([1], np.zeros(4096, np.int32), 0)


def test_tables_are_routed_together_as_one_by_one() -> None:
    rng = np.random.default_rng(0)
    keys = [rng.integers(-(2**63), 2**63 - 1, count) for count in (100, 0, 70_000)]
    owners = [rng.integers(0, 3, 4096).astype(np.int32) for _ in keys]
    orders, offsets, streams = _native.route_tables(keys, owners, 3)
    routes = [_native.route(*each, 3) for each in zip(keys, owners, strict=True)]
    for order, ends, route in zip(orders, offsets, routes, strict=True):
        np.testing.assert_array_equal(order, route[0])
        np.testing.assert_array_equal(ends, route[1])
    for owner, stream in enumerate(streams):
        parts = [
            each[order[ends[owner] : ends[owner + 1]]]
            for each, (order, ends) in zip(keys, routes, strict=True)
        ]
        np.testing.assert_array_equal(stream, np.concatenate(parts))
    with pytest.raises(InvalidArgumentError, match="owners of 3 tables are expected, found 2"):
        _native.route_tables(keys, owners[:2], 3)
    with pytest.raises(InvalidArgumentError, match="owners must be ranks from 0 to 1"):
        _native.route_tables(keys, owners, 2)
