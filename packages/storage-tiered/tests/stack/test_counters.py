"""Counters of each tier equal the actual keys, bytes and time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.storage.results import Columns, EvictedRows, Keys, Rows, Scores
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.admission import Frequency
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.runtime.events import EventLoop
from sparring.storage.open import open_storage
from sparring.storage.update import update_rows
from sparring.updates.builtin import BUILTIN_METHODS
from sparring_tiered import TieredStorage

from ..faulty_storage import FaultyStorage
from .stacks import KEYS, ROWS, TABLE, memory, stack_of

UNSEEN = np.arange(1_000, 1_050)
SECONDS = 0.01
PART = Columns(0, 2)
PART_BYTES = 2 * 4
SGD = BUILTIN_METHODS["sgd"]
CHOICE = MethodChoice(SGD(), SGD.hyperparameters(lr=0.5), 1)


class Slow(FaultyStorage):
    """Every call takes some time."""

    def _find_impl(self, keys: Keys, columns: Columns, rows: Rows, found: Any) -> None:
        time.sleep(SECONDS)
        super()._find_impl(keys, columns, rows, found)

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        time.sleep(SECONDS)
        return super()._upsert_impl(keys, rows, scores)

    def _erase_impl(self, keys: Keys) -> int:
        time.sleep(SECONDS)
        return super()._erase_impl(keys)


@pytest.fixture
def slow() -> Iterator[TieredStorage]:
    """Rows of 10 keys in the first tier, of 20 in the next, of 70 in the last."""
    with stack_of(Slow(memory(10)), Slow(memory(20)), Slow(memory())) as stack:
        stack.upsert(KEYS, ROWS)
        yield stack


def test_bytes_and_time_of_writes_are_counted_for_each_tier(slow: TieredStorage) -> None:
    row_bytes = TABLE.row_bytes
    counters = slow.tier_counters()
    assert [each.written_bytes for each in counters] == [100 * row_bytes, 90 * row_bytes, 840]
    assert [each.evictions for each in counters] == [90, 70, 0]
    before = [each.write_seconds for each in counters]
    assert all(SECONDS <= seconds < 30 for seconds in before), before
    start = time.perf_counter()
    assert slow.erase(KEYS) == 100
    elapsed = time.perf_counter() - start
    spent = [each.write_seconds - was for each, was in zip(counters, before, strict=True)]
    assert all(seconds >= SECONDS for seconds in spent), spent
    assert sum(spent) <= elapsed
    assert [each.written_bytes for each in counters] == [1200, 1080, 840], "of rows, not of keys"


@pytest.mark.parametrize("promote", ["always", "never"])
def test_hits_bytes_and_time_of_reads_are_counted_for_each_tier(promote: str) -> None:
    with stack_of(Slow(memory(10)), Slow(memory(20)), Slow(memory()), promote=promote) as stack:
        stack.upsert(KEYS, ROWS)
        counters = stack.tier_counters()
        assert [each.hits + each.misses + each.read_bytes for each in counters] == [0, 0, 0]
        start = time.perf_counter()
        assert stack.find(np.concatenate([KEYS, UNSEEN]), PART).found.sum() == 100
        elapsed = time.perf_counter() - start
        first, second, third = counters
        assert [each.hits for each in counters] == [10, 20, 70]
        assert first.misses == 140
        # Whole rows, which may be promoted.
        below = TABLE.row_bytes if promote == "always" else PART_BYTES
        assert [each.read_bytes for each in counters] == [10 * PART_BYTES, 20 * below, 70 * below]
        # The filter of the second tier does not forget the 70 keys that were evicted from it.
        assert 70 <= second.misses == second.bloom_false_positives <= 75
        assert third.misses == third.bloom_false_positives <= 5
        # The upsert looked up 100 unseen keys, the find 50.
        assert second.bloom_skips + second.bloom_false_positives == 220
        assert third.bloom_skips + third.bloom_false_positives == 150
        spent = [each.read_seconds for each in counters]
        assert all(seconds >= SECONDS for seconds in spent), spent
        assert sum(spent) <= elapsed


def test_a_hit_in_the_write_buffer_moves_no_bytes() -> None:
    last = Slow(memory())
    with stack_of(memory(10), last) as stack:
        stack.upsert(KEYS[:10], ROWS[:10])
        last.breakage = "writes"
        stack.upsert(KEYS[10:20], ROWS[10:20])
        assert stack.num_buffered_rows == 10
        assert stack.find(KEYS[:20]).found.all()
        counters = stack.tier_counters()
        assert [each.hits for each in counters] == [10, 10]
        assert counters[1].read_bytes == counters[1].written_bytes == 0
        last.breakage = None


def test_time_of_background_writes_is_also_counted() -> None:
    with EventLoop() as events, stack_of(memory(10), Slow(memory())) as stack:
        stack.use_background(events)
        stack.upsert(KEYS, ROWS)
        events.drain()
        last = stack.tier_counters()[1]
        assert last.written_bytes == 90 * TABLE.row_bytes
        assert last.write_seconds >= SECONDS


# -- first tiers whose rows native code reads and changes in place -------


def native(table: TableConfig, *below: Any, **options: Any) -> TieredStorage:
    pytest.importorskip("sparring_hkv", reason="sparring-hkv is not installed")
    above = {"backend": "hkv", "options": {"capacity": 480, "policy": "lru"}}
    stack = open_storage("tiered", table, tiers=[above, *below], **options)
    assert isinstance(stack, TieredStorage)
    assert stack.first_tier_access() is not None, "the first tier changes rows where they lie"
    return stack


BELOW = pytest.mark.parametrize("below", ["memory", "hkv"])


@BELOW
def test_bytes_and_time_of_updates_in_place_are_counted(below: str) -> None:
    table = TableConfig("films", 64)
    ones = np.ones((300, 64), np.float32)
    with native(table, below) as stack:
        first = stack.tier_counters()[0]
        start = time.perf_counter()
        for number in range(1, 11):
            update_rows(stack, np.arange(300), ones, CHOICE)
            assert first.written_bytes == number * 300 * table.row_bytes
        elapsed = time.perf_counter() - start
        assert 1e-6 < first.write_seconds <= elapsed
        update_rows(stack, np.arange(1_000, 1_300), ones, CHOICE)
        below_now = np.arange(300)[~stack.tiers[0].find(np.arange(300)).found][:50]
        assert len(below_now) == 50
        update_rows(stack, below_now, ones[:50], CHOICE)
        # Read in a lower tier, written to the first, and changed there.
        assert first.written_bytes == (11 * 300 + 2 * 50) * table.row_bytes
        last = stack.tier_counters()[1]
        assert (last.hits, last.read_bytes) == (50, 50 * table.row_bytes)


@BELOW
def test_rows_that_are_not_admitted_do_not_count_as_writes(below: str) -> None:
    table = TableConfig("films", 4, admission=Frequency(2))
    with StepContainer() as container:
        container.declare(table, native(table, below))
        for keys, num_rows in ((np.arange(40), 0), (np.arange(20, 80), 20), (np.arange(80), 100)):
            found = container.lookup("films", keys)
            ones = np.ones((len(keys), 4), np.float32)
            container.resources.accumulate(found.shadow_id or 0, ones)
            container.apply_methods({"films": CHOICE})
            tiers = container.tier_counters("films")
            assert tiers[0].written_bytes == num_rows * table.row_bytes


@BELOW
@pytest.mark.parametrize("num_state", [0, 2])
def test_bytes_and_time_of_rows_that_are_read_in_place_are_counted(
    below: str, num_state: int
) -> None:
    table = TableConfig("films", 64).with_state(num_state, "adagrad") if num_state else TABLE
    keys = np.arange(200)
    with StepContainer() as container:
        container.declare(table, native(table, below))
        container.storage("films").upsert(keys, np.ones((200, table.width), np.float32))
        collection = container.collection([("films", "sum")])
        tiers = container.tier_counters("films")
        assert tiers[0].read_seconds == tiers[0].hits == 0
        start = time.perf_counter()
        pooled = collection.pool(keys, np.arange(0, 201, 2), (0,), 100)
        elapsed = time.perf_counter() - start
        assert (pooled == 2).all()
        tiers = container.tier_counters("films")
        first, last = tiers
        assert (first.hits, first.misses, last.hits) == (200, 0, 0)
        assert first.read_bytes == 200 * table.dim * 4, "of the embeddings, not of the state"
        assert 0 < first.read_seconds <= elapsed * 64


LARGER = {"backend": "hkv", "options": {"capacity": 960, "policy": "lru"}}


@pytest.mark.parametrize("promote", ["always", "never"])
@pytest.mark.parametrize("last", ["hkv", "memory", "rocksdb"])
def test_reads_of_native_code_are_counted_for_the_tier_that_was_read(
    tmp_path: Path, last: str, promote: str
) -> None:
    if last == "rocksdb":
        pytest.importorskip("sparring_rocksdb", reason="sparring-rocksdb is not installed")
    below = {"backend": last, "options": {"path": str(tmp_path)} if last == "rocksdb" else {}}
    keys = np.arange(3_000)
    with native(TABLE, LARGER, below, promote=promote) as stack:
        stack.upsert(keys, np.ones((3_000, 3), np.float32))
        stack.flush()
        counters = stack.tier_counters()
        assert [each.hits + each.read_bytes for each in counters] == [0, 0, 0]
        assert all(each.write_seconds > 0 for each in counters)
        is_in = [tier.find(keys).found for tier in stack.tiers]
        expected = [is_in[0].sum(), (is_in[1] & ~is_in[0]).sum(), (~is_in[0] & ~is_in[1]).sum()]
        assert all(expected), "each tier has rows of its own"
        start = time.perf_counter()
        assert stack.find(np.concatenate([keys, UNSEEN + 5_000]), PART).found.sum() == 3_000
        elapsed = time.perf_counter() - start
        assert [each.hits for each in counters] == expected
        row_bytes = TABLE.row_bytes if promote == "always" else PART_BYTES
        of_rows = [PART_BYTES, row_bytes, row_bytes]
        assert [each.read_bytes for each in counters] == [
            count * size for count, size in zip(expected, of_rows, strict=True)
        ]
        assert counters[2].misses <= 5
        assert all(each.read_seconds > 0 for each in counters)
        assert sum(each.read_seconds for each in counters) <= elapsed
