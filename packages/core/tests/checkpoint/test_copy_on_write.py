"""A frozen table returns the rows of one moment, independent of later writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sparring import _native
from sparring.contracts.storage.results import ScanChunk
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.engine.checkpoint import copy_on_write as freezing
from sparring.engine.checkpoint.copy_on_write import CopyOnWriteView, UndoBudget
from sparring.engine.tables.write_log import WriteLog
from sparring.errors import InvalidArgumentError
from sparring.storage.open import open_storage

TABLE = TableConfig("item", 3)

STACKS: list[tuple[str, dict[str, Any]]] = [
    ("memory", {}),
    ("memory", {"capacity": 3000, "policy": "lru"}),
    ("memory", {"capacity": 3000, "policy": "lfu"}),
    ("hkv", {}),
    ("hkv", {"policy": "lfu"}),
    ("hkv", {"capacity": 3000, "policy": "lru"}),
    ("hkv", {"capacity": 3000, "policy": "custom"}),
]


@pytest.fixture(params=STACKS, ids=lambda stack: "-".join(map(str, [stack[0], *stack[1].values()])))
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    backend, options = request.param
    with open_storage(backend, TABLE, **options) as opened:
        yield opened


def contents(storage: Storage) -> dict[int, tuple[bytes, int]]:
    return {
        int(key): (row.tobytes(), int(score))
        for chunk in storage.scan()
        for key, row, score in zip(chunk.keys, chunk.rows, chunk.scores, strict=True)
    }


class Writes:
    """Random writes of all kinds."""

    def __init__(self, storage: Storage, seed: int) -> None:
        self._storage = storage
        self._random = np.random.default_rng(seed)

    def upsert(self, count: int = 300, keys: int = 4000) -> None:
        chosen = self._random.choice(keys, count, replace=False) - 50
        rows = self._random.normal(size=(count, 3)).astype(np.float32)
        self._storage.upsert(chosen, rows)

    def any(self) -> None:
        kind = self._random.integers(10)
        if kind < 7:
            self.upsert()
        elif kind < 8:
            self._storage.erase(self._random.choice(4000, 200, replace=False))
        elif kind < 9 and self._storage.capabilities.touch:
            self._storage.touch(self._random.choice(4000, 200, replace=False))
        elif self._storage.capabilities.evict:
            self._storage.evict(20)


def given(frozen: CopyOnWriteView) -> Iterator[dict[int, tuple[bytes, int]]]:
    return by_key(frozen.chunks())


def by_key(chunks: Iterator[ScanChunk]) -> Iterator[dict[int, tuple[bytes, int]]]:
    for chunk in chunks:
        yield {
            int(key): (row.tobytes(), int(score))
            for key, row, score in zip(chunk.keys, chunk.rows, chunk.scores, strict=True)
        }


def freeze(storage: Storage, changed: _native.KeySet | None = None) -> CopyOnWriteView:
    watch = WriteLog(TABLE.name)
    storage.watcher = watch
    view = CopyOnWriteView(TABLE, storage, UndoBudget(1 << 20), changed)
    watch.add_observer(view)
    return view


@pytest.fixture(autouse=True)
def many_small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezing, "_GROUP_BYTES", 1 << 10)
    monkeypatch.setattr(freezing, "_WINDOW_KEYS", 1000)
    monkeypatch.setattr(freezing, "_SCAN_ROWS", 100)
    monkeypatch.setattr(freezing, "_PIECE_KEYS", 7)


@pytest.mark.parametrize("seed", range(3))
def test_rows_and_scores_are_from_the_start_of_the_save(storage: Storage, seed: int) -> None:
    writes = Writes(storage, seed)
    for _ in range(20):
        writes.upsert()
    expected = contents(storage)
    frozen = freeze(storage)
    found: dict[int, tuple[bytes, int]] = {}
    for part in given(frozen):
        assert not found.keys() & part.keys(), "a key was given twice"
        found |= part
        writes.any()
    assert found == expected
    assert contents(storage) != expected


@pytest.mark.parametrize("seed", range(3))
def test_old_rows_may_be_written_before_their_turn(storage: Storage, seed: int) -> None:
    writes = Writes(storage, seed)
    for _ in range(20):
        writes.upsert()
    expected = contents(storage)
    frozen = freeze(storage)
    found: dict[int, tuple[bytes, int]] = {}

    def give(chunks: Iterator[ScanChunk]) -> None:
        for part in by_key(chunks):
            assert not found.keys() & part.keys(), "a key was given twice"
            found.update(part)

    for _ in range(3):
        writes.any()
        writes.upsert()
        give(frozen.undo_chunks())
        assert frozen.undo_bytes == 0
    assert found
    for chunk in frozen.chunks():
        give(iter([chunk]))
        writes.any()
        give(frozen.undo_chunks())
    assert found == expected


def test_rows_are_from_the_start_of_the_save_despite_a_concurrent_writer(storage: Storage) -> None:
    writes = Writes(storage, 11)
    for _ in range(20):
        writes.upsert()
    expected = contents(storage)
    frozen = freeze(storage)
    is_over = threading.Event()
    num_writes = 0

    def write() -> None:
        nonlocal num_writes
        while not is_over.is_set():
            writes.any()
            num_writes += 1

    writer = threading.Thread(target=write)
    writer.start()
    found: dict[int, tuple[bytes, int]] = {}
    try:
        for number, part in enumerate(given(frozen)):
            assert not found.keys() & part.keys(), "a key was given twice"
            found |= part
            while num_writes < min(number, 4) and writer.is_alive():
                time.sleep(0.001)
    finally:
        is_over.set()
        writer.join()
    assert found == expected
    assert num_writes > 3


@pytest.mark.parametrize("seed", range(3))
def test_a_delta_contains_changed_and_erased_rows(storage: Storage, seed: int) -> None:
    writes = Writes(storage, seed)
    for _ in range(20):
        writes.upsert()
    watch = WriteLog(TABLE.name)
    storage.watcher = watch
    watch.changed = _native.KeySet()
    before = contents(storage)
    for _ in range(6):
        writes.any()
    storage.erase(np.arange(0, 4000, 41))
    expected = contents(storage)
    frozen = freeze(storage, watch.changed)
    found: dict[int, tuple[bytes, int]] = {}
    for part in given(frozen):
        found |= part
        writes.any()
    erased = set(np.concatenate(frozen.erased).tolist())
    assert not erased & found.keys()
    assert {key: row for key, row in before.items() if key not in erased} | found == expected
    assert len(found) < len(expected)


def test_a_write_to_rows_that_were_already_saved_keeps_nothing() -> None:
    with open_storage("hkv", TABLE) as storage:
        Writes(storage, 0).upsert(3000)
        frozen = freeze(storage)
        assert sum(map(len, given(frozen))) == 3000
        Writes(storage, 1).upsert(3000)
        assert frozen.undo_bytes == 0


def test_clearing_a_table_during_its_save_fails_the_save() -> None:
    with open_storage("memory", TABLE) as storage:
        Writes(storage, 0).upsert()
        frozen = freeze(storage)
        storage.clear()
        with pytest.raises(InvalidArgumentError, match="cleared"):
            list(frozen.chunks())


def test_a_read_that_fails_fails_the_save_and_not_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_storage("memory", TABLE) as storage:
        Writes(storage, 0).upsert()
        frozen = freeze(storage)

        def broken(*_: object) -> None:
            raise OSError("disk gone")

        monkeypatch.setattr(storage, "_find_impl", broken)
        Writes(storage, 1).upsert()
        monkeypatch.undo()
        with pytest.raises(OSError, match="disk gone"):
            list(frozen.chunks())


def test_a_step_waits_while_too_many_old_rows_are_kept() -> None:
    budget = UndoBudget(100)
    with open_storage("hkv", TABLE) as storage:
        Writes(storage, 0).upsert(1000)
        watch = WriteLog(TABLE.name)
        storage.watcher = watch
        view = CopyOnWriteView(TABLE, storage, budget)
        watch.add_observer(view)
        assert budget.wait_for_capacity(0.0)
        Writes(storage, 1).upsert(1000)
        assert not budget.wait_for_capacity(0.01)
        assert budget.max_used_bytes > 100
        assert budget.wait_seconds > 0.005
        assert sum(map(len, given(view))) == 1000
        assert budget.wait_for_capacity(0.0)


@pytest.mark.parametrize("backend", ["memory", "hkv"])
def test_old_rows_are_written_while_the_keys_of_a_large_table_are_collected(backend: str) -> None:
    budget = UndoBudget(1 << 20)
    with open_storage(backend, TABLE) as storage:
        every = np.arange(4000)
        storage.upsert(every, np.ones((len(every), 3), np.float32))
        expected = contents(storage)
        watch = WriteLog(TABLE.name)
        storage.watcher = watch
        view = CopyOnWriteView(TABLE, storage, budget)
        watch.add_observer(view)
        waiting: list[int] = []
        new = iter(np.array_split(np.random.default_rng(0).permutation(every), 39))

        def write() -> None:
            waiting.append(view.undo_bytes if view else -1)
            keys = next(new, None)
            if keys is not None:
                storage.upsert(keys, np.zeros((len(keys), 3), np.float32))

        found: dict[int, tuple[bytes, int]] = {}
        for part in by_key(view.chunks(write)):
            found |= part
        assert found == expected
    assert len(waiting) > 39  # pieces of scans
    assert max(waiting) == 0
    # One write of some 100 rows at a time, with keys and flags.
    assert budget.max_used_bytes < 3 * 100 * (TABLE.row_bytes + 9)
