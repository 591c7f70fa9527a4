"""Tests of the rows that the policies lru, lfu and custom protect.

A storage whose eviction scope is a bucket may evict a protected row if all rows of the bucket are
protected. The kit allows this for one row in four.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sparring.contracts import EvictedRows, Keys, Storage
from sparring.errors import UnsupportedError
from sparring_testing.references.ledger import fill, require_capacity
from sparring_testing.references.samples import distinct_keys, random_rows, read_contents, require

__all__ = ["OpenBounded", "PolicyTests"]

OpenBounded = Callable[[str], Storage]

_RECENCY_POLICIES = ["lru", "lfu"]


class PolicyTests:
    """Rows that are touched or written stay; rows that are only read are not protected."""

    @pytest.mark.parametrize("policy", _RECENCY_POLICIES)
    def test_touched_rows_outlast_others(
        self, open_bounded: OpenBounded, rng: np.random.Generator, policy: str
    ) -> None:
        storage = open_bounded(policy)
        require(storage.capabilities.touch, "this storage declares touch=False")
        used, _ = _two_halves(storage, rng)
        for _ in range(2):
            storage.touch(used)
        _assert_stay(storage, _fill_bucket(storage, rng), used)

    @pytest.mark.parametrize("policy", _RECENCY_POLICIES)
    def test_upserted_rows_outlast_others(
        self, open_bounded: OpenBounded, rng: np.random.Generator, policy: str
    ) -> None:
        storage = open_bounded(policy)
        used, _ = _two_halves(storage, rng)
        for _ in range(2):
            storage.upsert(used, random_rows(rng, len(used), storage.table))
        _assert_stay(storage, _fill_bucket(storage, rng), used)

    def test_lru_evicts_the_oldest_rows(
        self, open_bounded: OpenBounded, rng: np.random.Generator
    ) -> None:
        storage = open_bounded("lru")
        first, second = _two_halves(storage, rng)
        for _ in range(3):
            storage.find(first)  # reading does not protect
        newest = distinct_keys(rng, _draw_few(storage))
        evicted = storage.upsert(newest, random_rows(rng, len(newest), storage.table))
        _assert_stay(storage, evicted, second)
        assert storage.find(newest).found.all(), "the newest rows were evicted"

    @pytest.mark.parametrize("policy", ["lru", "lfu", "custom"])
    def test_touch_changes_no_rows_and_adds_no_keys(
        self, open_bounded: OpenBounded, rng: np.random.Generator, policy: str
    ) -> None:
        storage = open_bounded(policy)
        require(storage.capabilities.touch, "this storage declares touch=False")
        keys = distinct_keys(rng, max(2, require_capacity(storage) // 4))
        known = keys[: len(keys) // 2]
        storage.upsert(known, random_rows(rng, len(known), storage.table))
        before = {key: row.data for key, row in read_contents(storage).items()}
        storage.touch(keys)
        storage.touch([])
        assert {key: row.data for key, row in read_contents(storage).items()} == before
        assert storage.size == len(known)

    def test_touch_stores_the_given_scores(
        self, open_bounded: OpenBounded, rng: np.random.Generator
    ) -> None:
        storage = open_bounded("custom")
        require(storage.capabilities.touch, "this storage declares touch=False")
        storage.upsert([1, 2, 3], random_rows(rng, 3, storage.table), [10, 20, 30])
        storage.touch([3, 1, 99], np.array([5, 2**64 - 1, 7], np.uint64))
        held = read_contents(storage)
        assert {key: row.score for key, row in held.items()} == {1: 2**64 - 1, 2: 20, 3: 5}

    @pytest.mark.parametrize("policy", _RECENCY_POLICIES)
    def test_scores_are_set_by_the_policy(
        self, open_bounded: OpenBounded, rng: np.random.Generator, policy: str
    ) -> None:
        storage = open_bounded(policy)
        assert storage.capabilities.scores == "policy"
        rows = random_rows(rng, 1, storage.table)
        storage.upsert([1], rows)
        before = read_contents(storage)
        with pytest.raises(UnsupportedError):
            storage.upsert([1], rows, [7])
        with pytest.raises(UnsupportedError):
            storage.touch([1], [7])
        assert read_contents(storage) == before


def _two_halves(storage: Storage, rng: np.random.Generator) -> tuple[Keys, Keys]:
    """Fills a storage with rows that are written once each; returns the older and the newer keys."""
    fill(storage, rng)
    storage.clear()
    keys = distinct_keys(rng, 4 * require_capacity(storage))
    for part in np.array_split(keys, 64):
        storage.upsert(part, random_rows(rng, len(part), storage.table))
    held = keys[storage.find(keys).found]
    return held[: len(held) // 2], held[len(held) // 2 :]


def _draw_few(storage: Storage) -> int:
    """Returns the number of keys whose insertion evicts one row in eight."""
    return max(1, require_capacity(storage) // 8)


def _fill_bucket(storage: Storage, rng: np.random.Generator) -> EvictedRows:
    """Upserts a few new keys."""
    keys = distinct_keys(rng, _draw_few(storage))
    return storage.upsert(keys, random_rows(rng, len(keys), storage.table))


def _assert_stay(storage: Storage, evicted: EvictedRows, staying: Keys) -> None:
    assert len(evicted) > 0
    gone = set(evicted.keys.tolist())
    num_wrong = len(gone & set(staying.tolist()))
    if storage.capabilities.eviction_scope == "table":
        assert num_wrong == 0, f"{num_wrong} rows were evicted that the policy protects"
    else:
        assert num_wrong <= len(gone) // 4, (
            f"{num_wrong} of {len(gone)} evicted rows were protected"
        )
