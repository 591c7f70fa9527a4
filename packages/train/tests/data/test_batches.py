"""Batches and splits: every row once, in an order that the seed determines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.errors import InvalidArgumentError
from sparring_train.data.batches import RatingBatch, concatenate, rebatch, shuffled_batches, take
from sparring_train.data.split import split_ratings, uniform_of_rows


def ratings(count: int, start: int = 0) -> RatingBatch:
    numbers = np.arange(start, start + count)
    return RatingBatch(numbers, numbers * 10, numbers.astype(np.float32))


@given(st.lists(st.integers(0, 9)), st.integers(1, 12))
def test_rebatch_keeps_all_rows_in_order(sizes: list[int], batch_size: int) -> None:
    starts = np.cumsum([0, *sizes]).tolist()
    parts = [ratings(size, start) for size, start in zip(sizes, starts, strict=False)]
    batches = list(rebatch(iter(parts), batch_size))
    assert [int(user) for batch in batches for user in batch.users] == list(range(sum(sizes)))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert all(0 < len(batch) <= batch_size for batch in batches)


def test_rebatch_asks_for_no_more_than_it_needs() -> None:
    asked = []

    def parts():  # type: ignore[no-untyped-def]
        for number in range(10):
            asked.append(number)
            yield ratings(5)

    next(rebatch(parts(), 8))
    assert asked == [0, 1]


def test_each_epoch_has_all_rows_in_an_order_of_its_own() -> None:
    data = ratings(1000)
    orders = [
        concatenate(list(shuffled_batches(data, 64, seed=seed, epoch=epoch))).users.tolist()
        for seed, epoch in [(1, 0), (1, 0), (1, 1), (2, 0), (-1, 0)]
    ]
    assert orders[0] == orders[1]
    assert all(sorted(order) == list(range(1000)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_rows_stay_together_when_shuffled() -> None:
    for batch in shuffled_batches(ratings(100), 7, seed=0, epoch=0):
        assert (batch.items == batch.users * 10).all()
        assert (batch.ratings == batch.users).all()


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_size_below_one_is_refused_at_once(batch_size: int) -> None:
    with pytest.raises(InvalidArgumentError, match="batch_size"):
        rebatch(iter([]), batch_size)
    with pytest.raises(InvalidArgumentError, match="batch_size"):
        shuffled_batches(ratings(3), batch_size, seed=0, epoch=0)


def test_a_split_is_seeded_and_loses_nothing() -> None:
    data = ratings(1000)
    split = split_ratings(data, test_fraction=0.1, seed=3)
    again = split_ratings(data, test_fraction=0.1, seed=3)
    other = split_ratings(data, test_fraction=0.1, seed=4)
    assert (len(split.train), len(split.test)) == (900, 100)
    both = np.concatenate([split.train.users, split.test.users])
    assert sorted(both.tolist()) == list(range(1000))
    assert (split.test.users == again.test.users).all()
    assert set(split.test.users) != set(other.test.users)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_a_fraction_outside_its_range_is_refused(fraction: float) -> None:
    with pytest.raises(InvalidArgumentError, match="test_fraction"):
        split_ratings(ratings(10), test_fraction=fraction)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(-(2**63), 2**63 - 1))
def test_a_row_is_held_out_wherever_its_stream_is_cut(first: int, cut: int, seed: int) -> None:
    def held_out(begin: int, end: int) -> list[bool]:
        rows = uniform_of_rows(begin, end - begin, seed=seed)
        return list(rows)

    end = first + 1000
    middle = first + cut
    assert held_out(first, end) == held_out(first, middle) + held_out(middle, end)


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.1, 0.5, 0.9])
def test_the_share_held_out_is_the_share_asked_for(fraction: float) -> None:
    shares = [(uniform_of_rows(0, 100_000, seed=s) < fraction).mean() for s in range(5)]
    # Five standard deviations of a binomial share.
    assert shares == pytest.approx([fraction] * 5, abs=5 * (fraction / 100_000) ** 0.5)
    assert len({float(share) for share in shares}) == (1 if fraction == 0 else 5)


def test_take_keeps_the_order_of_the_selection() -> None:
    assert take(ratings(5), np.array([4, 0, 4])).users.tolist() == [4, 0, 4]
