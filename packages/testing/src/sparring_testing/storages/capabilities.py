"""Tests that a storage supports what it declares and rejects what it does not declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from sparring.contracts import Capabilities, Storage
from sparring.errors import UnsupportedError
from sparring_testing.references.samples import (
    MakeStorage,
    Row,
    distinct_keys,
    make_table,
    random_rows,
    read_contents,
    require,
)

__all__ = ["CapabilityTests", "Estimate"]

Estimate = Callable[[Storage, int], Mapping[str, int]]
"""Returns the estimated bytes of each kind of memory for an open storage and a number of rows."""

_ROWS_AT_ONCE = 4096


class CapabilityTests:
    """The declared capabilities are correct."""

    def test_declared_capabilities_agree_with_each_other(self, storage: Storage) -> None:
        _check_consistent(storage)

    def test_declared_capabilities_of_bounded_storages_agree(
        self, bounded_storage: Storage
    ) -> None:
        _check_consistent(bounded_storage)
        assert bounded_storage.capabilities.bounded, (
            "bounded_options opened a storage that declares bounded=False"
        )

    def test_undeclared_touch_is_rejected(self, storage: Storage, rng: np.random.Generator) -> None:
        require(not storage.capabilities.touch, "this storage declares touch=True")
        before = _fill(storage, rng)
        with pytest.raises(UnsupportedError, match="touch"):
            storage.touch(list(before)[:3])
        assert read_contents(storage) == before

    def test_undeclared_evict_is_rejected(self, storage: Storage, rng: np.random.Generator) -> None:
        require(not storage.capabilities.evict, "this storage declares evict=True")
        before = _fill(storage, rng)
        with pytest.raises(UnsupportedError, match="evict"):
            storage.evict(1)
        assert read_contents(storage) == before

    def test_unsupported_scores_are_rejected(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        require(storage.capabilities.scores != "given", "this storage declares scores='given'")
        before = _fill(storage, rng)
        keys = list(before)[:3]
        with pytest.raises(UnsupportedError, match="scores"):
            storage.upsert(keys, random_rows(rng, 3, storage.table), [1, 2, 3])
        assert read_contents(storage) == before

    def test_unstored_scores_read_as_zero(self, storage: Storage, rng: np.random.Generator) -> None:
        scores = storage.capabilities.scores
        require(scores == "none", f"this storage declares scores={scores!r}")
        before = _fill(storage, rng)
        assert {row.score for row in before.values()} == {0}

    def test_memory_bytes_grow_with_rows_and_are_plausible(
        self, new_storage: MakeStorage, rng: np.random.Generator
    ) -> None:
        table = make_table(dim=16)
        storage = new_storage(table)
        assert storage.memory_bytes >= 0
        require(
            not storage.capabilities.persistent,
            "this storage declares persistent=True: its rows need not be in memory",
        )
        for num_rows in (5_000, 50_000):
            storage.upsert(np.arange(num_rows), random_rows(rng, num_rows, table))
            payload = num_rows * (8 + table.row_bytes)
            found = storage.memory_bytes
            assert found >= payload, f"memory_bytes {found} is less than {payload} of keys and rows"
            # A storage may allocate in advance, but within limits.
            assert found <= 20 * payload + (64 << 20), f"{found} bytes for {payload} of payload"

    def test_estimated_bytes_equal_the_memory_of_rows(
        self, new_storage: MakeStorage, rng: np.random.Generator, estimate: Estimate | None
    ) -> None:
        if estimate is None:
            pytest.skip("the fixture estimate is not defined: this backend has no estimate")
        storage = new_storage(make_table(dim=16))
        written = 0
        for num_rows in (30_000, 100_000):
            for begin in range(written, num_rows, _ROWS_AT_ONCE):
                keys = np.arange(begin, min(begin + _ROWS_AT_ONCE, num_rows))
                storage.upsert(keys, random_rows(rng, len(keys), storage.table))
            written = num_rows
            storage.flush()
            told = estimate(storage, num_rows)
            assert told.keys() <= {"gpu", "host", "disk", "remote"}, f"unknown kinds: {told}"
            expected = sum(count for kind, count in told.items() if kind != "disk")
            assert expected == pytest.approx(storage.memory_bytes, rel=0.1), (
                f"{num_rows} rows take {storage.memory_bytes} bytes, the estimate is {expected}"
            )


def _check_consistent(storage: Storage) -> None:
    declared = storage.capabilities
    assert isinstance(declared, Capabilities)
    assert declared.scores in ("none", "policy", "given")
    assert declared.eviction_scope in ("table", "bucket")
    assert "cpu" in declared.devices, "the kit passes host arrays, so devices must contain 'cpu'"
    assert declared.bounded == (storage.capacity is not None)
    assert declared.bounded or not declared.evicts, "evicts=True requires bounded=True"
    if declared.evicts or declared.evict:
        assert declared.scores != "none", "a storage that evicts needs scores"


def _fill(storage: Storage, rng: np.random.Generator) -> dict[int, Row]:
    storage.upsert(distinct_keys(rng, 30), random_rows(rng, 30, storage.table))
    return read_contents(storage)
