"""Tests of which rows are evicted.

If `Capabilities.eviction_scope` is ``table``, exactly the rows with the lowest scores are evicted. If it
is ``bucket``, the row with the lowest score of some bucket is evicted. In that case, the kit tests
a consequence for buckets of at least eight rows. It adds new keys, a sixteenth of the capacity, to
a full storage. At least three quarters of the evicted rows must then be among the lowest quarter of
all scores.
"""

from __future__ import annotations

import numpy as np
import pytest

from sparring.contracts import EvictedRows, Storage
from sparring.errors import InvalidArgumentError
from sparring_testing.references.ledger import Ledger, fill, require_capacity
from sparring_testing.references.samples import (
    Row,
    distinct_keys,
    random_rows,
    read_contents,
    require,
)

__all__ = ["EvictionTests"]

_LOW_QUANTILE, _LOW_SHARE = 0.25, 0.75


class EvictionTests:
    """The rows with the lowest scores are evicted, if the storage is full or on request."""

    def test_rows_with_the_lowest_scores_are_evicted(
        self, bounded_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage = bounded_storage
        require(storage.capabilities.evicts, "this storage declares evicts=False")
        _fill_with_many_scores(storage, rng)
        before = read_contents(storage)
        keys = distinct_keys(rng, max(1, require_capacity(storage) // 16))
        rows = random_rows(rng, len(keys), storage.table)
        # If the caller sets scores, the new keys get the highest.
        is_given = storage.capabilities.scores == "given"
        evicted = storage.upsert(keys, rows, np.full(len(keys), 2**63) if is_given else None)
        assert len(evicted) > 0
        _assert_lowest_left(storage, before, evicted)

    def test_new_row_with_the_lowest_score_is_returned_as_evicted(
        self, bounded_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage, capacity = bounded_storage, require_capacity(bounded_storage)
        require(storage.capabilities.scores == "given", "this storage takes no scores")
        require(storage.capabilities.evicts, "this storage declares evicts=False")
        for _ in range(8):
            keys = distinct_keys(rng, capacity)
            scores = rng.integers(1_000, 2_000, capacity, np.uint64)
            storage.upsert(keys, random_rows(rng, capacity, storage.table), scores)
        keys = distinct_keys(rng, max(1, capacity // 16))
        size = storage.size
        evicted = storage.upsert(
            keys, random_rows(rng, len(keys), storage.table), np.ones(len(keys), np.uint64)
        )
        num_returned = len(set(evicted.keys.tolist()) & set(keys.tolist()))
        is_exact = storage.capabilities.eviction_scope == "table"
        assert num_returned >= len(keys) * (1.0 if is_exact else _LOW_SHARE)
        assert storage.size >= size

    def test_evict_removes_the_lowest_scores_first(
        self, bounded_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage = bounded_storage
        require(storage.capabilities.evict, "this storage declares evict=False")
        ledger = _fill_with_many_scores(storage, rng)
        for count in (1, 7, require_capacity(storage) // 4):
            before = read_contents(storage)
            evicted = storage.evict(count)
            assert len(evicted) == count
            assert {before[key].score for key in evicted.keys.tolist()} == set(
                evicted.scores.tolist()
            )
            remaining = [row.score for row in read_contents(storage).values()]
            assert max(evicted.scores.tolist()) <= min(remaining)
            ledger.book(evicted)
        ledger.check()

    def test_evict_of_more_rows_than_stored_empties_the_storage(
        self, bounded_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage = bounded_storage
        require(storage.capabilities.evict, "this storage declares evict=False")
        ledger = Ledger(storage)
        keys = distinct_keys(rng, max(1, require_capacity(storage) // 2))
        ledger.upsert(keys, random_rows(rng, len(keys), storage.table), rng)
        assert len(storage.evict(0)) == 0
        evicted = storage.evict(len(keys) + 10)
        assert sorted(evicted.keys.tolist()) == sorted(keys.tolist())
        ledger.book(evicted)
        ledger.check()
        assert len(storage.evict(1)) == 0

    def test_evict_of_a_negative_count_is_rejected(
        self, bounded_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage = bounded_storage
        require(storage.capabilities.evict, "this storage declares evict=False")
        storage.upsert([1], random_rows(rng, 1, storage.table))
        with pytest.raises(InvalidArgumentError):
            storage.evict(-1)
        assert storage.size == 1


def _fill_with_many_scores(storage: Storage, rng: np.random.Generator) -> Ledger:
    """Fills a storage with rows that were written at different times and different numbers of times."""
    ledger = Ledger(storage)
    if storage.capabilities.evicts:
        fill(storage, rng)
        storage.clear()
    keys = distinct_keys(rng, 2 * require_capacity(storage))
    for part in np.array_split(keys, 16):
        ledger.upsert(part, random_rows(rng, len(part), storage.table), rng)
    for _ in range(4):
        held = np.array(list(ledger.held), np.int64)
        chosen = held[rng.random(len(held)) < 0.5]
        ledger.upsert(chosen, random_rows(rng, len(chosen), storage.table), rng)
    return ledger


def _assert_lowest_left(storage: Storage, before: dict[int, Row], evicted: EvictedRows) -> None:
    scores = evicted.scores.tolist()
    after = [row.score for row in read_contents(storage).values()]
    if storage.capabilities.eviction_scope == "table":
        assert max(scores) <= min(after), "a row was evicted although another had a lower score"
        return
    everything = [row.score for row in before.values()]
    limit = np.quantile(np.array(everything, np.float64), _LOW_QUANTILE, method="higher")
    share = float(np.mean(np.array(scores, np.float64) <= limit))
    assert share >= _LOW_SHARE, (
        f"only {share:.0%} of the evicted rows were among the lowest quarter of scores"
    )
