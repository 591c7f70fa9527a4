"""Compares random operations with a plain dict (a hypothesis state machine)."""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sparring.contracts import Columns, EvictedRows, Keys, Scores, Storage
from sparring.errors import CapacityError
from sparring_testing.references.samples import (
    EXTREME_KEYS,
    MakeStorage,
    make_table,
    read_contents,
    row_bytes,
)
from sparring_testing.storages.lifecycle import ReopenStorage
from sparring_testing.storages.policies import OpenBounded

__all__ = ["StateMachineTests", "StorageMachine"]

_SETTINGS = hypothesis.settings(
    max_examples=int(os.environ.get("SPARRING_KIT_EXAMPLES", "40")),
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)

_COUNT = st.integers(0, 2**16)
_WIDTH = 4


class StorageMachine(RuleBasedStateMachine):
    """A storage, and a dict that must have the same contents.

    Keys are ranges of a small pool, so that operations affect the same keys. Every written row is
    different. Subclasses define how to open and reopen a storage.
    """

    def __init__(self) -> None:
        super().__init__()
        self.storage = self.open()
        self.offers = self.storage.capabilities
        capacity = self.storage.capacity
        pool_size = 40 if capacity is None else min(3 * capacity, 3_000)
        spread = np.arange(pool_size, dtype=np.int64) * np.int64(0x1E3779B97F4A7C15)
        self.pool = np.unique(np.concatenate([EXTREME_KEYS, spread]))
        self.model: dict[int, bytes] = {}
        self.scores: dict[int, int] = {}
        self.num_written = 0

    def open(self) -> Storage:
        """Opens an empty storage of ``make_table()``."""
        raise NotImplementedError

    def reopen(self, storage: Storage) -> Storage:
        """Opens the data of a closed persistent storage again."""
        raise NotImplementedError

    @rule(start=_COUNT, count=_COUNT)
    def upsert(self, start: int, count: int) -> None:
        keys = self._keys(start, count)
        first = self.num_written + 1
        self.num_written += len(keys)
        numbers = np.arange(first, first + len(keys), dtype=np.float32)
        rows = numbers[:, None] + np.linspace(0, 0.5, _WIDTH, dtype=np.float32)
        scores = self._scores(len(keys))
        before = dict(self.model)
        self.model.update(zip(keys.tolist(), row_bytes(rows), strict=True))
        try:
            evicted = self.storage.upsert(keys, rows, scores)
        except CapacityError:
            assert self.offers.bounded
            assert not self.offers.evicts
            self.model = before
            self._compare()
            return
        if scores is not None:
            self.scores.update(zip(keys.tolist(), scores.tolist(), strict=True))
        self._book(evicted)

    @rule(start=_COUNT, count=_COUNT, begin=st.integers(0, 3), width=st.integers(1, 4))
    def find(self, start: int, count: int, begin: int, width: int) -> None:
        keys = self._keys(start, count)
        span = Columns(begin, min(_WIDTH, begin + width))
        result = self.storage.find(keys, span)
        wanted = [self.model.get(key) for key in keys.tolist()]
        assert result.found.tolist() == [row is not None for row in wanted]
        cut = slice(4 * span.begin, 4 * span.end)
        zeros = bytes(4 * _WIDTH)
        assert row_bytes(result.rows) == [(row or zeros)[cut] for row in wanted]

    @rule(start=_COUNT, count=_COUNT)
    def erase(self, start: int, count: int) -> None:
        keys = self._keys(start, count)
        num_known = sum(self.model.pop(key, None) is not None for key in keys.tolist())
        assert self.storage.erase(keys) == num_known

    @rule(chunk_rows=st.integers(1, 50))
    def scan(self, chunk_rows: int) -> None:
        pairs: list[tuple[int, bytes]] = []
        for chunk in self.storage.scan(chunk_rows):
            assert len(chunk) <= chunk_rows
            pairs += zip(chunk.keys.tolist(), row_bytes(chunk.rows), strict=True)
        assert len(pairs) == len(self.model)
        assert dict(pairs) == self.model

    @rule()
    def clear(self) -> None:
        self.storage.clear()
        self.model.clear()

    @rule()
    def flush(self) -> None:
        self.storage.flush()

    @precondition(lambda self: self.offers.touch)
    @rule(start=_COUNT, count=_COUNT)
    def touch(self, start: int, count: int) -> None:
        keys = self._keys(start, count)
        scores = self._scores(len(keys))
        self.storage.touch(keys, scores)
        if scores is not None:
            self.scores.update(zip(keys.tolist(), scores.tolist(), strict=True))

    @precondition(lambda self: self.offers.evict)
    @rule(count=st.integers(0, 20))
    def evict(self, count: int) -> None:
        expected = min(count, len(self.model))
        evicted = self.storage.evict(count)
        assert len(evicted) == expected
        self._book(evicted)

    @precondition(lambda self: self.offers.persistent)
    @rule()
    def close_and_reopen(self) -> None:
        self.storage.close()
        self.storage = self.reopen(self.storage)
        self._compare()

    @invariant()
    def check_size(self) -> None:
        assert self.storage.size == len(self.model)
        assert self.storage.capacity is None or self.storage.size <= self.storage.capacity

    def teardown(self) -> None:
        try:
            if not self.storage.is_closed:
                self._compare()
        finally:
            self.storage.close()

    def _keys(self, start: int, count: int) -> Keys:
        size = len(self.pool)
        return self.pool[(start + np.arange(count % (size + 1))) % size]

    def _scores(self, count: int) -> Scores | None:
        if self.offers.scores != "given":
            return None
        return np.random.default_rng(self.num_written).integers(0, 1_000, count, np.uint64)

    def _book(self, evicted: EvictedRows) -> None:
        for key, row, score in zip(
            evicted.keys.tolist(), row_bytes(evicted.rows), evicted.scores.tolist(), strict=True
        ):
            assert self.model.pop(key) == row
            assert self.offers.scores != "given" or self.scores[key] == score
        if len(evicted) and self.model and self.offers.eviction_scope == "table":
            remaining = min(row.score for row in read_contents(self.storage).values())
            assert int(evicted.scores.max()) <= remaining

    def _compare(self) -> None:
        found = read_contents(self.storage)
        assert {key: row.data for key, row in found.items()} == self.model
        if self.offers.scores == "given":
            assert all(row.score == self.scores[key] for key, row in found.items())


class StateMachineTests:
    """After any sequence of operations, the storage has the same contents as a dict."""

    def test_random_operations_agree_with_a_dict(
        self, new_storage: MakeStorage, reopen_storage: ReopenStorage
    ) -> None:
        class Machine(StorageMachine):
            def open(self) -> Storage:
                return new_storage(make_table(_WIDTH))

            def reopen(self, storage: Storage) -> Storage:
                return reopen_storage(storage)

        _run(Machine)

    def test_random_operations_on_a_bounded_storage_agree_with_a_dict(
        self, bounded_policy: str, open_bounded: OpenBounded, reopen_storage: ReopenStorage
    ) -> None:
        class Machine(StorageMachine):
            def open(self) -> Storage:
                return open_bounded(bounded_policy)

            def reopen(self, storage: Storage) -> Storage:
                return reopen_storage(storage)

        _run(Machine)


def _run(machine: type[StorageMachine]) -> None:
    run: Any = run_state_machine_as_test
    run(machine, settings=_SETTINGS)
