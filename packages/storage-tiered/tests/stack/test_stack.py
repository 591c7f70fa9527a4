"""How rows move between tiers, and which errors a stack raises if one of them fails."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from sparring.contracts.storage.results import Columns
from sparring.contracts.storage.storage import Storage
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.table import TableConfig
from sparring.errors import (
    CapacityError,
    ClosedError,
    DeadlineError,
    InvalidArgumentError,
    StorageIOError,
)
from sparring.storage.memory import MemoryStorage
from sparring.storage.native import NativeStorage, get_capsule
from sparring.storage.open import open_storage
from sparring.storage.update import update_rows
from sparring.updates.builtin import BUILTIN_METHODS
from sparring_tiered import TieredOptions, TieredStorage

from ..faulty_storage import FaultyStorage
from .stacks import KEYS, ROWS, TABLE, memory, stack_of


def keys_in(storage: Storage) -> set[int]:
    return {key for chunk in storage.scan() for key in chunk.keys.tolist()}


class Watched(FaultyStorage):
    """Counts the keys that are read from it and written to it."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.num_asked = self.num_written = 0

    def _find_impl(self, keys: Any, columns: Any, rows: Any, found: Any) -> None:
        self.num_asked += len(keys)
        super()._find_impl(keys, columns, rows, found)

    def _upsert_impl(self, keys: Any, rows: Any, scores: Any) -> Any:
        self.num_written += len(keys)
        return super()._upsert_impl(keys, rows, scores)


def test_rows_evicted_from_the_first_tier_are_stored_in_the_next() -> None:
    first, second, third = memory(10), memory(20), memory()
    stack = stack_of(first, second, third)
    for key in KEYS:
        stack.upsert([key], ROWS[key : key + 1])
    assert keys_in(first) == set(range(90, 100))
    assert keys_in(second) == set(range(70, 90))
    assert keys_in(third) == set(range(70))
    assert np.array_equal(stack.find(KEYS).rows, ROWS)
    assert stack.size == 100


def test_find_changes_no_tier_and_the_next_write_promotes_the_found_rows() -> None:
    first, last = memory(10), Watched(memory())
    stack = stack_of(first, last)
    stack.upsert(KEYS, ROWS)
    stack.flush()
    before = [list(tier.scan()) for tier in stack.tiers]
    held = keys_in(first)
    wanted = [key for key in KEYS.tolist() if key not in held][:3]
    stack.find(wanted, Columns(0, 1))
    after = [list(tier.scan()) for tier in stack.tiers]
    for old, new in zip(before, after, strict=True):
        assert [chunk.keys.tolist() for chunk in old] == [chunk.keys.tolist() for chunk in new]
        assert [chunk.scores.tolist() for chunk in old] == [chunk.scores.tolist() for chunk in new]
    stack.upsert([777], ROWS[:1])
    assert set(wanted) <= keys_in(first)
    assert stack.tier_counters()[1].promotions == 3
    asked = last.num_asked
    assert np.array_equal(stack.find(wanted).rows, ROWS[wanted])
    assert last.num_asked == asked, "a promoted row cost a trip"


@pytest.mark.parametrize(("policy", "reads"), [("always", 1), ("second_touch", 2), ("never", None)])
def test_promotion_follows_its_policy(policy: str, reads: int | None) -> None:
    first = memory(10)
    stack = stack_of(first, memory(), promote=policy)
    stack.upsert(KEYS, ROWS)
    (wanted,) = (key for key in KEYS.tolist()[:1] if key not in keys_in(first))
    for read in range(1, 4):
        stack.find([wanted])
        stack.upsert([777], ROWS[:1])
        assert (wanted in keys_in(first)) == (reads is not None and read >= reads)


def test_a_row_that_was_only_read_is_not_written_to_a_lower_tier_again() -> None:
    first, last = memory(10), Watched(memory())
    stack = stack_of(first, last)
    stack.upsert(KEYS, ROWS)
    stack.flush()
    written = last.num_written
    for start in range(0, 80, 5):
        stack.find(KEYS[start : start + 5])
        stack.upsert([777], ROWS[:1])
    assert stack.tier_counters()[0].evictions > 100
    # Key 777 itself, if it was evicted; a filter may mistake a clean row for a dirty one.
    assert last.num_written - written <= 5


def test_unknown_keys_cost_no_request() -> None:
    last = Watched(memory())
    stack = stack_of(memory(10), last)
    stack.upsert(KEYS, ROWS)
    asked = last.num_asked
    assert not stack.find(np.arange(1_000, 21_000)).found.any()
    assert last.num_asked - asked <= 0.01 * 20_000
    stack.upsert(np.arange(50_000, 50_100), ROWS)
    assert stack.size == 200
    counters = stack.tier_counters()[1]
    assert counters.bloom_skips >= 19_800


def test_filter_is_rebuilt_after_many_erasures() -> None:
    many = np.arange(10_000)
    last = Watched(memory())
    stack = stack_of(memory(10), last)
    stack.upsert(many, np.ones((10_000, 3), np.float32))
    assert stack.erase(many[:9_000]) == 9_000
    asked = last.num_asked
    assert not stack.find(many[:9_000]).found.any()
    assert last.num_asked - asked <= 0.01 * 9_000


def test_stack_over_a_tier_with_rows_finds_them() -> None:
    last = memory()
    last.upsert(KEYS, ROWS)
    stack = stack_of(memory(10), last)
    assert stack.size == 100
    assert np.array_equal(stack.find(KEYS).rows, ROWS)
    stack.upsert(KEYS[:5], ROWS[5:10])
    assert stack.size == 100


def test_upper_tier_with_old_rows_is_counted_once() -> None:
    first, last = memory(50), memory()
    last.upsert(KEYS[:60], ROWS[:60])
    first.upsert(KEYS[40:80], ROWS[:40])
    stack = stack_of(first, last)
    assert stack.size == 80
    stack.flush()
    assert np.array_equal(last.find(KEYS[40:80]).rows, ROWS[:40])


def test_failure_of_a_lower_tier_is_raised_by_the_next_write_which_changes_nothing() -> None:
    last = FaultyStorage(memory())
    stack = stack_of(memory(10), last)
    stack.upsert(KEYS[:10], ROWS[:10])
    last.breakage = "writes"
    stack.upsert(KEYS[10:20], ROWS[10:20])
    assert stack.num_buffered_rows == 10
    with pytest.raises(
        StorageIOError, match=r"tier 'memory' failed.*10 rows are buffered.*Repair"
    ) as caught:
        stack.upsert(KEYS[20:30], ROWS[20:30])
    assert isinstance(caught.value.__cause__, StorageIOError)
    assert stack.size == 20
    assert not stack.find(KEYS[20:30]).found.any()
    assert np.array_equal(stack.find(KEYS[:20]).rows, ROWS[:20])
    stack.upsert(KEYS[20:30], ROWS[20:30])  # reported once, it continues in memory
    last.breakage = None
    stack.upsert(KEYS[30:40], ROWS[30:40])
    assert stack.num_buffered_rows == 0
    assert np.array_equal(stack.find(KEYS[:40]).rows, ROWS[:40])
    assert stack.tier_counters()[1].write_failures > 0


def test_deadline_error_of_a_lower_tier_keeps_its_class() -> None:
    last = FaultyStorage(memory())
    stack = stack_of(memory(10), last)
    stack.upsert(KEYS[:10], ROWS[:10])
    last.breakage = "slow"
    stack.upsert(KEYS[10:20], ROWS[10:20])
    with pytest.raises(DeadlineError):
        stack.flush()


def test_full_write_buffer_rejects_a_write_before_anything_changes() -> None:
    last = FaultyStorage(memory())
    stack = stack_of(memory(10), last, buffer_bytes=15 * (TABLE.row_bytes + 16))
    stack.upsert(KEYS[:10], ROWS[:10])
    last.breakage = "writes"
    stack.upsert(KEYS[10:20], ROWS[10:20])
    with pytest.raises(StorageIOError):
        stack.upsert(KEYS[20:30], ROWS[20:30])
    for _ in range(2):
        with pytest.raises(
            CapacityError, match=r"10 rows .* buffered.*changed nothing.*buffer_bytes"
        ):
            stack.upsert(KEYS[20:30], ROWS[20:30])
    assert stack.size == 20
    assert np.array_equal(stack.find(KEYS[:20]).rows, ROWS[:20])


def test_write_through_stores_the_row_in_the_lower_tier_before_it_returns() -> None:
    middle, last = memory(20), FaultyStorage(memory())
    stack = stack_of(memory(10), middle, last, write="through")
    stack.upsert(KEYS[:30], ROWS[:30])
    assert np.array_equal(last.find(KEYS[:30]).rows, ROWS[:30])
    last.breakage = "writes"
    with pytest.raises(StorageIOError, match="no row is lost"):
        stack.upsert(KEYS[:5], ROWS[50:55])
    assert np.array_equal(stack.find(KEYS[:5]).rows, ROWS[50:55])


def test_updates_are_also_written_through() -> None:
    last = memory()
    stack = stack_of(memory(10), last, write="through")
    method = BUILTIN_METHODS["sgd"]()
    choice = MethodChoice(method, BUILTIN_METHODS["sgd"].hyperparameters(lr=0.5), 1)
    stack.upsert(KEYS[:5], np.ones((5, 3), np.float32))
    update_rows(stack, KEYS[:5], np.ones((5, 3), np.float32), choice)
    assert (last.find(KEYS[:5]).rows == 0.5).all()


def test_bounded_stack_returns_the_rows_that_its_last_tier_evicts() -> None:
    stack = stack_of(memory(10), memory(20))
    assert stack.capacity == 30
    assert stack.capabilities.evicts
    held = {}
    for part in np.array_split(KEYS, 25):
        evicted = stack.upsert(part, ROWS[part])
        held |= {int(key): ROWS[key].tobytes() for key in part}
        for key, row in zip(evicted.keys.tolist(), evicted.rows, strict=True):
            assert held.pop(key) == row.tobytes()
        stack.find(KEYS[: len(held) // 2])
        assert stack.size == len(held) <= 30
    assert keys_in(stack) == set(held)


def test_native_handle_of_a_stack_reads_and_writes_it() -> None:
    stack = stack_of(memory(10), memory())
    handle = NativeStorage(get_capsule(stack), TABLE)
    handle.upsert(KEYS, ROWS)
    assert handle.size == 100
    assert np.array_equal(handle.find(KEYS).rows, ROWS)


def test_a_closed_stack_frees_rows_in_memory_and_finds_none() -> None:
    pytest.importorskip("sparring_hkv", reason="sparring-hkv is not installed")
    tiers = [open_storage("hkv", TABLE, capacity=480, policy="lru"), open_storage("hkv", TABLE)]
    tables = [
        weakref.ref(each.handle_in_memory) for each in tiers if isinstance(each, NativeStorage)
    ]
    stack = stack_of(*tiers)
    stack.upsert(KEYS, ROWS)
    assert stack.find(KEYS).found.all()
    stack.close()
    assert [each() for each in tables] == [None, None]
    # Like a call in flight, or a call of the engine, which checks nothing.
    with pytest.raises(ClosedError, match="films"):
        stack._find_impl(KEYS, Columns(0, 3), np.empty_like(ROWS), np.empty(len(KEYS), np.bool_))


def test_first_tier_that_rejects_rows_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match=r"tier 0 .* does not evict.*lru"):
        stack_of(memory(10, "none"), memory())
    options = TieredOptions(tiers=("memory", "memory"))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="found 1 tiers"):
        TieredStorage(TABLE, options, [("memory", memory())])


def test_tier_for_another_table_is_rejected() -> None:
    other = MemoryStorage(TableConfig("films", 4))
    with pytest.raises(InvalidArgumentError, match=r"tier 1 .* was opened for"):
        stack_of(memory(), other)


def test_failed_erase_restores_no_older_row() -> None:
    last = FaultyStorage(memory())
    stack = stack_of(memory(10), last)
    stack.upsert(KEYS[:5], ROWS[:5])
    stack.flush()
    stack.upsert(KEYS[:5], ROWS[50:55])
    last.breakage = "writes"
    with pytest.raises(StorageIOError):
        stack.erase(KEYS[:5])
    assert np.array_equal(stack.find(KEYS[:5]).rows, ROWS[50:55])


def test_partly_failed_erase_loses_no_row_that_is_still_found() -> None:
    last = FaultyStorage(memory())
    stack = stack_of(memory(10), last)
    stack.upsert(KEYS[:6], ROWS[:6])
    stack.flush()  # the rows above are clean now
    last.breakage = "halfway"
    with pytest.raises(StorageIOError):
        stack.erase(KEYS[:6])
    last.breakage = None
    assert stack.find(KEYS[:6]).found.all()
    stack.upsert(KEYS[50:70], ROWS[50:70])  # pushes them out
    assert np.array_equal(stack.find(KEYS[:6]).rows, ROWS[:6])
    assert stack.size == 26


def test_reads_of_a_save_are_not_counted() -> None:
    stack = stack_of(memory(10), memory(20), memory())
    stack.upsert(KEYS, ROWS)
    stack.find(KEYS[:5])
    before = [tier.as_dict() for tier in stack.tier_counters()]
    rows, found = np.empty((101, 3), np.float32), np.empty(101, np.bool_)
    with_an_unknown_key = np.append(KEYS, 777)
    stack.copy_into(with_an_unknown_key, Columns(0, 3), rows, found)
    assert np.array_equal(rows[:100], ROWS)
    assert np.array_equal(found, with_an_unknown_key != 777)
    chunks = stack.scan(7)
    next(chunks)
    stack._stack.num_writes += 1  # a write during the scan, which now looks up rows again
    assert sum(map(len, chunks)) == 93
    assert [tier.as_dict() for tier in stack.tier_counters()] == before
