"""Tests that a storage and its native handle are the same storage."""

from __future__ import annotations

import numpy as np
import pytest

from sparring.contracts import Columns, NativeStorage, Storage, get_capsule
from sparring.errors import CapacityError, ClosedError
from sparring_testing.references.ledger import require_capacity
from sparring_testing.references.samples import (
    EXTREME_KEYS,
    MakeStorage,
    assert_contains_rows,
    distinct_keys,
    make_table,
    random_rows,
    read_contents,
    require,
    row_bytes,
)

__all__ = ["NativeHandleTests"]


class NativeHandleTests:
    """The storage and its native handle see each other's writes, bit for bit."""

    def test_writes_through_the_native_handle_are_visible_in_the_storage(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        handle = _open_handle(storage)
        keys = np.concatenate([EXTREME_KEYS, distinct_keys(rng, 300)])
        rows = random_rows(rng, len(keys), storage.table)
        assert len(handle.upsert(keys, rows)) == 0
        assert_contains_rows(storage, keys, rows)
        assert storage.erase(keys[:9]) == 9
        assert handle.find(keys).found.tolist() == [False] * 9 + [True] * 300
        assert handle.erase(keys) == 300
        assert storage.size == handle.size == 0

    @pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
    def test_reads_through_the_native_handle_agree_with_the_storage(
        self, new_storage: MakeStorage, rng: np.random.Generator, dtype: str
    ) -> None:
        table = make_table(dim=5, dtype=dtype, state_width=2)
        storage = new_storage(table)
        handle = _open_handle(storage)
        keys = distinct_keys(rng, 300)
        storage.upsert(keys[:200], random_rows(rng, 200, table))
        for span in (None, Columns(0, 5), Columns(5, 7), Columns(2, 3)):
            ours, theirs = storage.find(keys, span), handle.find(keys, span)
            assert row_bytes(ours.rows) == row_bytes(theirs.rows)
            assert ours.found.tolist() == theirs.found.tolist()
            scanned = {
                key: row
                for chunk in handle.scan(33, span)
                for key, row in zip(chunk.keys.tolist(), row_bytes(chunk.rows), strict=True)
            }
            assert scanned == dict(zip(keys[:200].tolist(), row_bytes(ours.rows), strict=False))
        assert read_contents(handle) == read_contents(storage)
        assert handle.size == storage.size
        assert handle.capacity == storage.capacity
        assert handle.memory_bytes == storage.memory_bytes
        handle.flush()
        handle.clear()
        assert storage.size == 0

    def test_native_handle_has_the_capabilities_of_the_storage(self, storage: Storage) -> None:
        declared, found = storage.capabilities, _open_handle(storage).capabilities
        for name in ("persistent", "concurrent_reads", "bounded", "evicts", "evict", "touch"):
            assert getattr(found, name) == getattr(declared, name), name
        assert (found.scores == "given") == (declared.scores == "given")

    def test_native_handle_of_a_bounded_storage_returns_evicted_rows(
        self, bounded_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage, handle = bounded_storage, _open_handle(bounded_storage)
        keys = distinct_keys(rng, 3 * require_capacity(storage))
        rows = random_rows(rng, len(keys), storage.table)
        if not storage.capabilities.evicts:
            with pytest.raises(CapacityError):
                handle.upsert(keys, rows)
            assert storage.size == 0
            return
        evicted = handle.upsert(keys, rows)
        gone = dict(zip(evicted.keys.tolist(), row_bytes(evicted.rows), strict=True))
        held = {key: row.data for key, row in read_contents(storage).items()}
        assert not gone.keys() & held.keys()
        assert gone | held == dict(zip(keys.tolist(), row_bytes(rows), strict=True))
        if storage.capabilities.touch:
            handle.touch(keys)
        if storage.capabilities.evict:
            assert len(handle.evict(5)) == 5
            assert storage.size == len(held) - 5

    def test_native_handle_of_a_closed_python_storage_raises_closed_error(
        self, storage: Storage
    ) -> None:
        is_wrapped = storage.capabilities.native or isinstance(storage, NativeStorage)
        require(not is_wrapped, "the native handle of a wrapped storage outlives the wrapper")
        handle = _open_handle(storage)
        storage.close()
        with pytest.raises(ClosedError):
            handle.find([1])


def _open_handle(storage: Storage) -> Storage:
    return NativeStorage(get_capsule(storage), storage.table)
