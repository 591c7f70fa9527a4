"""Rows are written to the last tier in the background: bounded, and none of them is lost."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sparring.contracts.storage.storage import Storage, write_note
from sparring.contracts.storage.updates import MethodChoice
from sparring.errors import CapacityError, ClosedError, DeadlineError, StorageIOError
from sparring.runtime.events import BackgroundError, EventLoop
from sparring.storage.open import open_storage
from sparring.storage.update import update_rows
from sparring.updates.builtin import BUILTIN_METHODS
from sparring_tiered import TieredStorage

from ..faulty_storage import FaultyStorage
from .stacks import KEYS, ROWS, TABLE, memory, stack_of

ROW_BYTES = TABLE.row_bytes + 16


@pytest.fixture
def events() -> Iterator[EventLoop]:
    with EventLoop() as made:
        yield made
        made.drain()


def beside(events: EventLoop, last: Storage, **options: Any) -> TieredStorage:
    """A first tier of 10 rows over `last`, which is written in the background."""
    stack = stack_of(memory(10), last, **options)
    stack.use_background(events)
    return stack


def hang(stack: TieredStorage, last: FaultyStorage) -> None:
    """Keys 0 to 9 are being written, half of them are; 10 to 19 are in the first tier."""
    stack.upsert(KEYS[:10], ROWS[:10])
    last.breakage = "hung"
    stack.upsert(KEYS[10:20], ROWS[10:20])
    assert last.is_amid_write.wait(10)


def test_a_write_returns_before_its_evicted_rows_are_written(
    events: EventLoop, last: FaultyStorage
) -> None:
    stack = beside(events, last)
    hang(stack, last)
    assert stack.num_buffered_rows == 10
    assert last.inner.size == 5
    result = stack.find(KEYS[:20])
    assert result.found.all()
    assert np.array_equal(result.rows, ROWS[:20])
    last.breakage = None
    events.drain()
    assert stack.num_buffered_rows == 0
    assert np.array_equal(last.inner.find(KEYS[:10]).rows, ROWS[:10])
    assert np.array_equal(stack.find(KEYS[:20]).rows, ROWS[:20])


def test_rows_buffered_during_a_write_are_newer_and_follow_it(
    events: EventLoop, last: FaultyStorage
) -> None:
    stack = beside(events, last)
    hang(stack, last)
    stack.upsert(KEYS[:10], ROWS[50:60])
    stack.upsert(KEYS[20:30], ROWS[20:30])  # pushes those out again
    assert np.array_equal(stack.find(KEYS[:10]).rows, ROWS[50:60])
    assert (stack.size, stack.num_buffered_rows) == (30, 20)
    last.breakage = None
    events.drain()  # no further call of the stack
    assert stack.num_buffered_rows == 0
    assert np.array_equal(last.inner.find(KEYS[:10]).rows, ROWS[50:60])
    assert np.array_equal(stack.find(KEYS[:10]).rows, ROWS[50:60])


def test_a_failed_background_write_is_reported_once_and_loses_nothing(
    events: EventLoop, last: FaultyStorage
) -> None:
    stack = beside(events, last)
    stack.upsert(KEYS[:10], ROWS[:10])
    last.breakage = "halfway"
    stack.upsert(KEYS[10:20], ROWS[10:20])
    events.drain()
    with pytest.raises(BackgroundError, match=r"write-back of table 'films'.*10 rows are") as told:
        events.check()
    assert isinstance(told.value.__cause__, StorageIOError)
    assert isinstance(told.value.__cause__.__cause__, StorageIOError)
    assert stack.num_buffered_rows == 10
    assert np.array_equal(stack.find(KEYS[:20]).rows, ROWS[:20])
    stack.upsert(KEYS[:5], ROWS[50:55])  # newer rows of keys that failed, then pushed out
    stack.upsert(KEYS[20:30], ROWS[20:30])
    events.drain()
    last.breakage = None
    stack.upsert(KEYS[30:40], ROWS[30:40])
    events.drain()
    assert stack.num_buffered_rows == 0
    assert np.array_equal(last.inner.find(KEYS[:5]).rows, ROWS[50:55])
    assert np.array_equal(stack.find(KEYS[5:40]).rows, ROWS[5:40])
    assert stack.tier_counters()[1].write_failures > 0
    with pytest.raises(BackgroundError):
        events.check()


def test_a_write_waits_for_space_and_reports_the_time(
    events: EventLoop, last: FaultyStorage
) -> None:
    stack = beside(events, last, buffer_bytes=25 * ROW_BYTES)
    hang(stack, last)
    stack.upsert(KEYS[20:30], ROWS[20:30])  # there is space for these
    before = stack.tier_counters()[1].wait_seconds
    mender = threading.Timer(0.5, setattr, (last, "breakage", None))
    mender.start()
    stack.upsert(KEYS[30:40], ROWS[30:40])
    mender.join()
    assert stack.tier_counters()[1].wait_seconds > before + 0.05
    assert np.array_equal(stack.find(KEYS[:40]).rows, ROWS[:40])


def test_a_wait_for_a_hung_tier_is_bounded_and_changes_nothing(
    events: EventLoop, last: FaultyStorage
) -> None:
    stack = beside(events, last, buffer_bytes=15 * ROW_BYTES, deadline_seconds=0.1)
    hang(stack, last)
    waiting: list[Any] = [
        lambda: stack.upsert(KEYS[20:30], ROWS[20:30]),
        stack.wait_for_capacity,
        lambda: stack.erase(KEYS[:5]),
        stack.clear,
        stack.flush,
        lambda: write_note(stack, "words", "text"),
    ]
    for call in waiting:
        start = time.monotonic()
        with pytest.raises(DeadlineError, match=r"tier 'memory'.* did not end within 0.1 s"):
            call()
        assert time.monotonic() - start < 5
    assert stack.size == 20
    assert np.array_equal(stack.find(KEYS[:20]).rows, ROWS[:20])
    assert not stack.find(KEYS[20:30]).found.any()
    last.breakage = None
    events.drain()
    stack.upsert(KEYS[20:30], ROWS[20:30])
    assert stack.erase(KEYS[:30]) == 30


def test_a_failing_tier_rejects_writes_once_the_buffer_is_full(
    events: EventLoop, last: FaultyStorage
) -> None:
    stack = beside(events, last, buffer_bytes=15 * ROW_BYTES)
    stack.upsert(KEYS[:10], ROWS[:10])
    last.breakage = "writes"
    stack.upsert(KEYS[10:20], ROWS[10:20])
    events.drain()
    with pytest.raises(CapacityError, match=r"10 rows .* are buffered.*changed nothing") as caught:
        stack.upsert(KEYS[20:30], ROWS[20:30])
    assert isinstance(caught.value.__cause__, StorageIOError)
    assert stack.size == 20
    last.breakage = None
    stack.upsert(KEYS[20:30], ROWS[20:30])
    assert np.array_equal(stack.find(KEYS[:30]).rows, ROWS[:30])
    with pytest.raises(BackgroundError):
        events.check()


def test_rows_erased_while_they_are_written_are_not_restored(
    events: EventLoop, last: FaultyStorage
) -> None:
    stack = beside(events, last)
    hang(stack, last)
    mender = threading.Timer(0.1, setattr, (last, "breakage", None))
    mender.start()
    assert stack.erase(KEYS[:10]) == 10
    mender.join()
    events.drain()
    assert not stack.find(KEYS[:10]).found.any()
    assert (stack.size, last.inner.size) == (10, 0)
    hang(stack, last)
    mender = threading.Timer(0.1, setattr, (last, "breakage", None))
    mender.start()
    stack.clear()
    mender.join()
    events.drain()
    assert (stack.size, last.inner.size, stack.num_buffered_rows) == (0, 0, 0)


def test_a_scan_and_a_save_include_rows_that_are_being_written(
    events: EventLoop, last: FaultyStorage
) -> None:
    stack = beside(events, last)
    hang(stack, last)
    stack.upsert(KEYS[20:30], ROWS[20:30])
    seen = {}
    for chunk in stack.scan(7):
        for key, row in zip(chunk.keys.tolist(), chunk.rows, strict=True):
            assert key not in seen
            seen[key] = row.tobytes()
    assert seen == {key: ROWS[key].tobytes() for key in range(30)}


def test_recounting_waits_for_rows_that_are_being_written(events: EventLoop) -> None:
    class LandsWhileItIsCounted(FaultyStorage):
        def _size_impl(self) -> int:
            size = super()._size_impl()
            self.breakage = None
            while self.is_amid_write.is_set():
                time.sleep(0.001)
            return size

    last = LandsWhileItIsCounted(memory())
    first = memory(10)
    first.upsert(KEYS[:10], ROWS[:10])  # of an earlier run: the keys in the lower tier are unknown
    stack = stack_of(first, last)
    stack.use_background(events)
    last.breakage = "hung"
    stack.upsert(KEYS[10:20], ROWS[10:20])
    assert last.is_amid_write.wait(10)
    mender = threading.Timer(0.1, setattr, (last, "breakage", None))
    mender.start()
    assert stack.size == 20
    mender.join()


def test_flush_and_close_drain(events: EventLoop, last: FaultyStorage) -> None:
    stack = beside(events, last)
    hang(stack, last)
    threading.Timer(0.1, setattr, (last, "breakage", None)).start()
    stack.flush()
    assert np.array_equal(last.inner.find(KEYS[:20]).rows, ROWS[:20])
    last.delay_seconds = 0.1
    stack.upsert(KEYS[20:30], ROWS[20:30])
    stack.upsert(KEYS[30:40], ROWS[30:40])
    kept = dict(last.inner._entries)  # type: ignore[attr-defined]
    stack.close()
    assert last.is_closed
    assert len(kept) == 20
    events.check()


def test_close_does_not_close_a_tier_during_a_hung_write(
    events: EventLoop, last: FaultyStorage
) -> None:
    stack = beside(events, last, deadline_seconds=0.1)
    hang(stack, last)
    first = stack.tiers[0]
    with pytest.raises(DeadlineError, match="10 rows are buffered in memory"):
        stack.close()
    assert first.is_closed
    assert not last.is_closed, "closed beneath a write"
    last.breakage = None
    events.drain()
    assert last.is_closed


def test_write_that_has_not_started_is_cancelled(last: FaultyStorage) -> None:
    with EventLoop(num_threads=1) as events:
        is_free = threading.Event()
        events.submit(lambda: is_free.wait(60), name="another's work")
        # Any call that waits for the other work would be rejected.
        stack = beside(events, last, buffer_bytes=15 * ROW_BYTES, deadline_seconds=5.0)
        for begin in range(0, 100, 10):
            stack.upsert(KEYS[begin : begin + 10], ROWS[begin : begin + 10])
        assert stack.erase(KEYS[:5]) == 5
        stack.flush()
        assert last.inner.size == 95
        is_free.set()


def test_a_stack_works_without_space_on_the_event_loop(last: FaultyStorage) -> None:
    with EventLoop(capacity=1) as events:
        is_free = threading.Event()
        events.submit(lambda: is_free.wait(10), name="another's work")
        stack = beside(events, last)
        stack.upsert(KEYS[:10], ROWS[:10])
        stack.upsert(KEYS[10:20], ROWS[10:20])
        assert (stack.num_buffered_rows, last.inner.size) == (10, 0)
        is_free.set()
        events.drain()
        stack.upsert(KEYS[20:30], ROWS[20:30])
        events.drain()
        assert (stack.num_buffered_rows, last.inner.size) == (0, 20)
    stack.upsert(KEYS[30:40], ROWS[30:40])  # the background is closed
    assert (stack.num_buffered_rows, last.inner.size) == (0, 30)


LOCKS: dict[str, Callable[[TieredStorage], Any]] = {
    "write-back": lambda stack: stack._demotion.write_back._changed,
    "write buffer": lambda stack: stack._stack.last.write_buffer._changing,
    "stack": lambda stack: stack._stack.lock._changed,
    "writer": lambda stack: stack._stack.lock.writing(),
    "promotion buffer": lambda stack: stack._stack.promotion._lock,
    "meter": lambda stack: stack._stack.last.meter._lock,
}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_child_forked_while_a_thread_has_a_lock_is_rejected(
    lock: str, events: EventLoop, last: FaultyStorage
) -> None:
    stack = beside(events, last, promote="second_touch")
    hang(stack, last)
    is_held, may_let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with LOCKS[lock](stack):
            is_held.set()
            may_let_go.wait(90)

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(10)
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends a child that hangs
        try:
            for refused in (
                lambda: stack.find(KEYS[:20]),
                lambda: stack.upsert(KEYS[20:40], ROWS[20:40]),
                lambda: stack.erase(KEYS[:5]),
                lambda: list(stack.scan()),
                lambda: stack.size,
                stack.clear,
                stack.flush,
            ):
                with pytest.raises(ClosedError, match=r"the stack of table .* before a fork"):
                    refused()
            stack.close()
            del stack
            gc.collect()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    may_let_go.set()
    holder.join()
    assert status == 0


@pytest.mark.parametrize("lock", ["write-back", "write buffer"])
def test_a_worker_forked_during_a_write_back_can_exit(
    lock: str, events: EventLoop, last: FaultyStorage
) -> None:
    stack = beside(events, last)
    hang(stack, last)
    is_held, may_let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with LOCKS[lock](stack):
            is_held.set()
            may_let_go.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(10)

    def work() -> None:
        # Like a data loader, which inherits the container but looks nothing up.
        gc.collect()

    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    worker.join(20)
    may_let_go.set()
    holder.join()
    assert worker.exitcode == 0


@pytest.mark.parametrize(
    "options", [{"write": "through"}, {"write_back": "inline"}], ids=["through", "inline"]
)
def test_rows_can_be_written_to_the_last_tier_immediately(
    events: EventLoop, last: FaultyStorage, options: dict[str, Any]
) -> None:
    stack = beside(events, last, **options)
    for begin in range(0, 100, 10):
        stack.upsert(KEYS[begin : begin + 10], ROWS[begin : begin + 10])
        assert stack.num_buffered_rows == 0
        assert events.num_outstanding == 0


def test_a_last_tier_that_evicts_or_supports_no_concurrent_readers_is_written_in_the_call(
    events: EventLoop,
) -> None:
    class Alone(FaultyStorage):
        def __init__(self) -> None:
            super().__init__(memory())
            self.capabilities = type(self.inner.capabilities)()

    for last in (memory(50), Alone()):
        stack = beside(events, last)
        for begin in range(0, 100, 10):
            stack.upsert(KEYS[begin : begin + 10], ROWS[begin : begin + 10])
            assert events.num_outstanding == 0


def test_updates_in_place_during_background_writes_have_the_bits_of_a_plain_table(
    events: EventLoop, last: FaultyStorage
) -> None:
    pytest.importorskip("sparring_hkv", reason="sparring-hkv is not installed")
    stack = stack_of(open_storage("hkv", TABLE, capacity=480, policy="lru"), last)
    assert stack.first_tier_access() is not None, "the first tier changes rows where they lie"
    stack.use_background(events)
    plain = memory()
    random = np.random.default_rng(0)
    method = BUILTIN_METHODS["sgd"]()
    last.delay_seconds = 0.002
    for number in range(1, 61):
        keys = random.permutation(2000)[:200]
        gradients = random.normal(size=(200, 3)).astype(np.float32)
        last.breakage = "halfway" if number % 10 in (3, 4) else None
        choice = MethodChoice(method, BUILTIN_METHODS["sgd"].hyperparameters(lr=0.5), number)
        assert update_rows(stack, keys, gradients, choice) == update_rows(
            plain, keys, gradients, choice
        )
        wanted = random.permutation(2000)[:300]
        ours, expected = stack.find(wanted), plain.find(wanted)
        assert np.array_equal(ours.found, expected.found)
        assert np.array_equal(ours.rows, expected.rows)
    assert last.num_failures > 0
    assert stack.size == plain.size
    last.breakage = None
    stack.flush()
    assert np.array_equal(last.inner.find(np.arange(2000)).rows, plain.find(np.arange(2000)).rows)
    with pytest.raises(BackgroundError):
        events.check()
