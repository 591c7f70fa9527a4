"""Counts of ids in a report: exact, for all ids or for a random part of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring_train.report.id_counts import NOT_COUNTED, IdCounts

ids_of = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), max_size=30)


def array(ids: list[int]) -> np.ndarray:
    return np.array(ids, np.int64)


@given(st.lists(ids_of, max_size=6), ids_of)
def test_ids_are_counted_as_a_counter_does(batches: list[list[int]], asked: list[int]) -> None:
    counts, expected = IdCounts(max_ids=1000), Counter()
    for batch in batches:
        counts.add(array(batch))
        expected.update(batch)
    known = [*asked, *expected]
    assert counts.of(array(known)).tolist() == [expected[each] for each in known]
    assert counts.one_in == 1


def test_of_many_ids_a_part_is_counted_exactly() -> None:
    random = np.random.default_rng(1)
    counts, expected = IdCounts(max_ids=500), Counter()
    for _ in range(40):
        batch = random.integers(0, 10_000, 1000)
        counts.add(batch)
        expected.update(batch.tolist())
    known = np.arange(-5000, 10_000)
    found = counts.of(known)
    is_counted = found != NOT_COUNTED
    assert counts.one_in == 32
    assert found[is_counted].tolist() == [expected[each] for each in known[is_counted].tolist()]
    # The part has as many unseen ids, because it is selected only by hash.
    for part in (known < 0, known >= 0):
        assert is_counted[part].mean() == pytest.approx(1 / 32, rel=0.4)
    assert len(counts.parts()[0]) <= 500


def test_counts_of_ranks_are_merged() -> None:
    random = np.random.default_rng(2)
    parts = [random.integers(0, 3000, size) for size in (5000, 300, 0)]
    expected = Counter(np.concatenate(parts).tolist())
    made = []
    for part in parts:
        counts = IdCounts(max_ids=1000)
        counts.add(part)
        made.append(counts)
    assert [each.one_in for each in made][1:] == [1, 1]
    joined = IdCounts.joined([each.parts() for each in made], max_ids=1000)
    assert joined.one_in == made[0].one_in or joined.one_in == 2 * made[0].one_in
    known = np.arange(3000)
    found = joined.of(known)
    is_counted = found != NOT_COUNTED
    assert 0 < is_counted.sum() <= 1000
    assert found[is_counted].tolist() == [expected[each] for each in known[is_counted].tolist()]


def test_a_reused_buffer_changes_no_count() -> None:
    counts, buffer = IdCounts(), array([1, 1])
    counts.add(buffer)
    buffer[:] = 2
    assert counts.of(array([1, 2])).tolist() == [2, 0]
