"""Batches and splits: every row once, in an order that the seed determines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.errors import InvalidArgumentError
from sparring_train.data.batches import ClickBatch, rebatch, take
from sparring_train.data.split import uniform_of_rows


def clicks(count: int, start: int = 0) -> ClickBatch:
    numbers = np.arange(start, start + count)
    labels = numbers.astype(np.float32)
    return ClickBatch(labels[:, np.newaxis], numbers[:, np.newaxis], labels)


@given(st.lists(st.integers(0, 9)), st.integers(1, 12))
def test_rebatch_keeps_all_rows_in_order(sizes: list[int], batch_size: int) -> None:
    starts = np.cumsum([0, *sizes]).tolist()
    parts = [clicks(size, start) for size, start in zip(sizes, starts, strict=False)]
    batches = list(rebatch(iter(parts), batch_size))
    assert [int(each) for batch in batches for each in batch.labels] == list(range(sum(sizes)))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert all(0 < len(batch) <= batch_size for batch in batches)


def test_rebatch_reads_only_as_much_as_it_needs() -> None:
    asked = []

    def parts():  # type: ignore[no-untyped-def]
        for number in range(10):
            asked.append(number)
            yield clicks(5)

    next(rebatch(parts(), 8))
    assert asked == [0, 1]


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_size_below_one_is_rejected_at_once(batch_size: int) -> None:
    with pytest.raises(InvalidArgumentError, match="batch_size"):
        rebatch(iter([]), batch_size)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(-(2**63), 2**63 - 1))
def test_a_row_is_held_out_for_any_division_of_its_stream(first: int, cut: int, seed: int) -> None:
    def held_out(begin: int, end: int) -> list[bool]:
        rows = uniform_of_rows(begin, end - begin, seed=seed)
        return list(rows)

    end = first + 1000
    middle = first + cut
    assert held_out(first, end) == held_out(first, middle) + held_out(middle, end)


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.1, 0.5, 0.9])
def test_the_share_held_out_is_the_requested_share(fraction: float) -> None:
    shares = [(uniform_of_rows(0, 100_000, seed=s) < fraction).mean() for s in range(5)]
    # Five standard deviations of a binomial share.
    assert shares == pytest.approx([fraction] * 5, abs=5 * (fraction / 100_000) ** 0.5)
    assert len({float(share) for share in shares}) == (1 if fraction == 0 else 5)


def test_take_keeps_the_order_of_the_selection() -> None:
    assert take(clicks(5), np.array([4, 0, 4])).labels.tolist() == [4, 0, 4]
