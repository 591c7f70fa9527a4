"""Tests of closing a storage and, for persistent backends, opening it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparring import update_rows
from sparring.adapter import BUILTIN_METHODS, begin_load, end_load, restore
from sparring.contracts import (
    Columns,
    MethodChoice,
    Storage,
    get_capsule,
    interrupted_load,
    read_note,
    write_note,
)
from sparring.errors import ClosedError
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

__all__ = ["LifecycleTests", "ReopenStorage"]

ReopenStorage = Callable[[Storage], Storage]

_ROW = np.ones((1, 4), np.float32)

_SGD = MethodChoice(BUILTIN_METHODS["sgd"](), BUILTIN_METHODS["sgd"].hyperparameters(), 1)

_CALLS: dict[str, Callable[[Storage], Any]] = {
    "find": lambda storage: storage.find([1]),
    "find of nothing": lambda storage: storage.find([]),
    "find_into": lambda storage: storage.find_into(
        np.array([1]), Columns(0, 4), np.empty((1, 4), np.float32), np.empty(1, np.bool_)
    ),
    "upsert": lambda storage: storage.upsert([1], _ROW),
    "upsert_from": lambda storage: storage.upsert_from(np.array([1]), _ROW),
    "update": lambda storage: update_rows(storage, [1], _ROW, _SGD),
    "capacity": lambda storage: storage.capacity,
    "erase": lambda storage: storage.erase([1]),
    "scan": lambda storage: storage.scan(),
    "size": lambda storage: storage.size,
    "len": len,
    "memory_bytes": lambda storage: storage.memory_bytes,
    "touch": lambda storage: storage.touch([1]),
    "evict": lambda storage: storage.evict(1),
    "clear": lambda storage: storage.clear(),
    "flush": lambda storage: storage.flush(),
    "write_note": lambda storage: write_note(storage, "load", "a text"),
    "read_note": lambda storage: read_note(storage, "load"),
    "begin_load": lambda storage: begin_load(storage, "a snapshot"),
    "end_load": end_load,
    "interrupted_load": interrupted_load,
    "get_capsule": get_capsule,
}


class LifecycleTests:
    """Closing is final and safe at any time; persistent rows are found again."""

    @pytest.mark.parametrize("call", _CALLS)
    def test_every_call_after_close_raises_closed_error(self, storage: Storage, call: str) -> None:
        storage.upsert([1], _ROW)
        storage.close()
        assert storage.is_closed
        with pytest.raises(ClosedError):
            _CALLS[call](storage)

    def test_close_may_be_called_twice(self, storage: Storage) -> None:
        assert not storage.is_closed
        storage.close()
        storage.close()
        assert storage.is_closed

    def test_storage_closes_at_the_end_of_a_with_block(self, new_storage: MakeStorage) -> None:
        with new_storage(make_table()) as storage:
            storage.upsert([1], _ROW)
        assert storage.is_closed

    def test_scan_in_progress_raises_when_the_storage_is_closed(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        storage.upsert(distinct_keys(rng, 100), random_rows(rng, 100, storage.table))
        chunks = storage.scan(10)
        next(chunks)
        storage.close()
        with pytest.raises(ClosedError):
            next(chunks)

    def test_arrays_outlive_the_storage(self, storage: Storage, rng: np.random.Generator) -> None:
        keys = distinct_keys(rng, 100)
        rows = random_rows(rng, 100, storage.table)
        storage.upsert(keys, rows)
        result, chunks = storage.find(keys), list(storage.scan(30))
        storage.close()
        assert row_bytes(result.rows) == row_bytes(rows)
        assert sorted(key for chunk in chunks for key in chunk.keys.tolist()) == sorted(keys)

    def test_close_and_reopen_finds_the_written_rows(
        self, storage: Storage, reopen: ReopenStorage, rng: np.random.Generator
    ) -> None:
        keys = np.concatenate([EXTREME_KEYS, distinct_keys(rng, 300)])
        rows = random_rows(rng, len(keys), storage.table)
        storage.upsert(keys, random_rows(rng, len(keys), storage.table))
        storage.upsert(keys, rows)
        storage.erase(keys[::5])
        before = read_contents(storage)
        storage.close()
        again = reopen(storage)
        assert read_contents(again) == before
        assert again.size == len(before)
        is_kept = np.arange(len(keys)) % 5 != 0
        assert_contains_rows(again, keys[is_kept], rows[is_kept])
        assert not again.find(keys[~is_kept]).found.any()
        again.upsert(keys, rows)
        assert_contains_rows(again, keys, rows)

    def test_close_and_reopen_after_clear_finds_nothing(
        self, storage: Storage, reopen: ReopenStorage, rng: np.random.Generator
    ) -> None:
        storage.upsert(distinct_keys(rng, 100), random_rows(rng, 100, storage.table))
        storage.clear()
        storage.close()
        assert read_contents(reopen(storage)) == {}

    def test_load_begins_without_rows_and_is_over_when_it_ends(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        storage.upsert([1, 2], random_rows(rng, 2, storage.table))
        assert interrupted_load(storage) is None
        begin_load(storage, "a snapshot")
        assert storage.size == 0
        assert interrupted_load(storage) == "a snapshot"
        rows = random_rows(rng, 1, storage.table)
        restore(storage, [2], rows, [0])
        end_load(storage)
        assert interrupted_load(storage) is None
        assert_contains_rows(storage, np.array([2]), rows)
        begin_load(storage, "another")
        storage.clear()
        assert interrupted_load(storage) is None

    def test_notes_outlive_clear(self, storage: Storage) -> None:
        assert read_note(storage, "colour") is None
        write_note(storage, "colour", "grün")
        write_note(storage, "shape", "round")
        write_note(storage, "shape", None)
        storage.clear()
        assert (read_note(storage, "colour"), read_note(storage, "shape")) == ("grün", None)

    def test_notes_outlive_reopening(self, storage: Storage, reopen: ReopenStorage) -> None:
        require(storage.capabilities.notes, "this storage declares notes=False")
        write_note(storage, "colour", "grün")
        write_note(storage, "shape", "round")
        write_note(storage, "shape", None)
        storage.close()
        again = reopen(storage)
        assert (read_note(again, "colour"), read_note(again, "shape")) == ("grün", None)

    def test_incomplete_load_is_known_after_reopening(
        self, storage: Storage, reopen: ReopenStorage, rng: np.random.Generator
    ) -> None:
        require(storage.capabilities.notes, "this storage declares notes=False")
        begin_load(storage, "a snapshot")
        restore(storage, [1], random_rows(rng, 1, storage.table), [0])
        storage.close()
        again = reopen(storage)
        assert interrupted_load(again) == "a snapshot"
        end_load(again)
        again.close()
        once_more = reopen(again)
        assert interrupted_load(once_more) is None
        assert once_more.size == 1

    def test_storage_that_is_not_persistent_opens_empty(
        self, new_storage: MakeStorage, rng: np.random.Generator
    ) -> None:
        first = new_storage(make_table())
        require(not first.capabilities.persistent, "this storage declares persistent=True")
        first.upsert(distinct_keys(rng, 100), random_rows(rng, 100, first.table))
        first.close()
        assert new_storage(make_table()).size == 0
