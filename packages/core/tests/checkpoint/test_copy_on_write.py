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
from sparring_testing.processes.table_steps import read_chunks

TABLE = TableConfig("item", 3)

STACKS: list[Any] = [
    ("memory", {}),
    pytest.param(("memory", {"capacity": 3000, "policy": "lru"}), marks=pytest.mark.slow),
    ("memory", {"capacity": 3000, "policy": "lfu"}),
    ("hkv", {}),
    pytest.param(("hkv", {"policy": "lfu"}), marks=pytest.mark.slow),
    ("hkv", {"capacity": 3000, "policy": "lru"}),
    pytest.param(("hkv", {"capacity": 3000, "policy": "custom"}), marks=pytest.mark.slow),
]


@pytest.fixture(params=STACKS, ids=lambda stack: "-".join(map(str, [stack[0], *stack[1].values()])))
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    backend, options = request.param
    with open_storage(backend, TABLE, **options) as opened:
        yield opened


SEEDS = pytest.mark.parametrize(
    "seed", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2))]
)


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


@SEEDS
def test_rows_and_scores_are_from_the_start_of_the_save(storage: Storage, seed: int) -> None:
    writes = Writes(storage, seed)
    for _ in range(20):
        writes.upsert()
    expected = read_chunks(storage.scan())
    frozen = freeze(storage)
    found: dict[int, tuple[bytes, int]] = {}
    for part in map(read_chunks, ([each] for each in frozen.chunks())):
        assert not found.keys() & part.keys(), "a key was given twice"
        found |= part
        writes.any()
    assert found == expected
    assert read_chunks(storage.scan()) != expected


@SEEDS
def test_old_rows_may_be_written_before_their_turn(storage: Storage, seed: int) -> None:
    writes = Writes(storage, seed)
    for _ in range(20):
        writes.upsert()
    expected = read_chunks(storage.scan())
    frozen = freeze(storage)
    found: dict[int, tuple[bytes, int]] = {}

    def give(chunks: Iterator[ScanChunk]) -> None:
        for part in map(read_chunks, ([each] for each in chunks)):
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
    expected = read_chunks(storage.scan())
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
        for number, part in enumerate(map(read_chunks, ([each] for each in frozen.chunks()))):
            assert not found.keys() & part.keys(), "a key was given twice"
            found |= part
            while num_writes < min(number, 4) and writer.is_alive():
                time.sleep(0.001)
    finally:
        is_over.set()
        writer.join()
    assert found == expected
    assert num_writes > 3


@SEEDS
def test_a_delta_contains_changed_and_erased_rows(storage: Storage, seed: int) -> None:
    writes = Writes(storage, seed)
    for _ in range(20):
        writes.upsert()
    watch = WriteLog(TABLE.name)
    storage.watcher = watch
    watch.changed = _native.KeySet()
    before = read_chunks(storage.scan())
    for _ in range(6):
        writes.any()
    storage.erase(np.arange(0, 4000, 41))
    expected = read_chunks(storage.scan())
    frozen = freeze(storage, watch.changed)
    found: dict[int, tuple[bytes, int]] = {}
    for part in map(read_chunks, ([each] for each in frozen.chunks())):
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
        assert sum(map(len, map(read_chunks, ([each] for each in frozen.chunks())))) == 3000
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
        assert sum(map(len, map(read_chunks, ([each] for each in view.chunks())))) == 1000
        assert budget.wait_for_capacity(0.0)


@pytest.mark.parametrize("backend", ["memory", "hkv"])
def test_old_rows_are_written_while_the_keys_of_a_large_table_are_collected(backend: str) -> None:
    budget = UndoBudget(1 << 20)
    with open_storage(backend, TABLE) as storage:
        every = np.arange(4000)
        storage.upsert(every, np.ones((len(every), 3), np.float32))
        expected = read_chunks(storage.scan())
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
        for part in map(read_chunks, ([each] for each in view.chunks(write))):
            found |= part
        assert found == expected
    assert len(waiting) > 39  # pieces of scans
    assert max(waiting) == 0
    # One write of some 100 rows at a time, with keys and flags.
    assert budget.max_used_bytes < 3 * 100 * (TABLE.row_bytes + 9)
