"""Records the upserts and evictions of a bounded storage."""

from __future__ import annotations

import numpy as np

from sparring.contracts import EvictedRows, Keys, Rows, Storage
from sparring_testing.references.samples import distinct_keys, random_rows, read_contents, row_bytes

__all__ = ["Ledger", "require_capacity", "fill"]


class Ledger:
    """Records every upsert and eviction, and compares the record with the contents of the storage."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.held: dict[int, bytes] = {}
        self.scores: dict[int, int] = {}

    def upsert(self, keys: Keys, rows: Rows, rng: np.random.Generator) -> EvictedRows:
        """Upserts rows, with random scores if the storage accepts scores."""
        scores = None
        if self.storage.capabilities.scores == "given":
            scores = rng.integers(0, 1_000_000, len(keys), np.uint64)
            self.scores.update(zip(keys.tolist(), scores.tolist(), strict=True))
        evicted = self.storage.upsert(keys, rows, scores)
        self.held.update(zip(keys.tolist(), row_bytes(rows), strict=True))
        self.book(evicted)
        return evicted

    def book(self, evicted: EvictedRows) -> None:
        """Removes evicted rows from the record; fails if they were not in it."""
        assert evicted.keys.dtype == np.int64
        assert evicted.rows.dtype == self.storage.table.numpy_dtype
        assert evicted.scores.dtype == np.uint64
        assert evicted.scores.shape == (len(evicted),)
        for key, row, score in zip(
            evicted.keys.tolist(), row_bytes(evicted.rows), evicted.scores.tolist(), strict=True
        ):
            assert key in self.held, f"key {key} was returned as evicted, but was not stored"
            assert row == self.held.pop(key), f"key {key} was returned as evicted with an old row"
            if key in self.scores:
                assert score == self.scores[key], f"key {key} was returned with another score"

    def check(self) -> None:
        """Fails unless the contents of the storage are equal to the record."""
        found = read_contents(self.storage)
        assert {key: row.data for key, row in found.items()} == self.held
        assert self.storage.size == len(self.held)
        for key, row in found.items():
            assert key not in self.scores or row.score == self.scores[key]


def fill(storage: Storage, rng: np.random.Generator) -> None:
    """Fills a storage that evicts, so that each further key evicts another."""
    ledger = Ledger(storage)
    for _ in range(8):
        keys = distinct_keys(rng, require_capacity(storage))
        ledger.upsert(keys, random_rows(rng, len(keys), storage.table), rng)


def require_capacity(storage: Storage) -> int:
    """Returns the capacity of a bounded storage."""
    capacity = storage.capacity
    assert capacity is not None
    return capacity
