"""Prefetches that start before a step return the rows after it."""

from __future__ import annotations

import threading
from itertools import product
from typing import Any

import numpy as np
import pytest

from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import (
    InvalidArgumentError,
    NonFiniteGradientError,
    PeerFailure,
    StorageIOError,
)
from sparring.exchange.messenger import MessageKind
from sparring.storage.memory import MemoryStorage
from sparring_testing.processes.rank_threads import run_containers
from sparring_testing.processes.table_steps import declare_tables, descend

TABLES = (
    TableConfig("user", 4, initializer=Uniform(-1, 1)),
    TableConfig("item", 3, "bfloat16", initializer=Uniform(-1, 1)),
)


EXCHANGE = ExchangeOptions(chunk_rows=4)


def repeating_ids(step: int, rank: int) -> list[tuple[str, np.ndarray]]:
    """Returns batches that share many ids with the next one."""
    random = np.random.default_rng((step // 2, rank))
    some = random.integers(-25, 25, 0 if (step + rank) % 5 == 4 else 30)
    return [("user", some + step), ("item", some[::2].copy())]


SHORT = {(1, "evicting"), (2, "fused"), (2, "int8"), (3, "by rows")}


@pytest.mark.parametrize(
    ("world_size", "way"),
    [
        pytest.param(*each, marks=[] if each in SHORT else pytest.mark.slow)
        for each in product([1, 2, 3], ["fused", "by rows", "evicting", "int8"])
    ],
)
def test_finish_returns_the_rows_of_a_lookup_after_the_step(world_size: int, way: str) -> None:
    def body(made: StepContainer) -> tuple[int, int]:
        is_evicting = way == "evicting"
        choices = declare_tables(
            made,
            TABLES,
            StorageChoice("hkv", {"capacity": 128, "policy": "lru"} if is_evicting else {}),
            "adagrad",
            lr=0.1,
        )
        rank = made.collective.rank

        def ids_of(step: int, rank: int) -> list[tuple[str, np.ndarray]]:
            (user, some), item = repeating_ids(step, rank)
            # More new keys in each step than a small table stores, and many of the previous step's.
            new = np.arange(40 * step, 40 * step + 70 * is_evicting)
            return [(user, np.concatenate([some, new])), item]

        for step in range(12):
            for found in made.lookup_all(ids_of(step, rank)):
                made.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
            ahead = made.prefetch(ids_of(step + 1, rank))
            if way == "by rows":
                made.apply(descend())
            else:
                made.apply_methods(choices)
            if step % 3 == 0:
                made.lookup_all(ids_of(step + 7, rank), is_registered=False)
            early = ahead.finish()
            now = made.lookup_all(ids_of(step + 1, rank), is_registered=False)
            for one, other in zip(early, now, strict=True):
                np.testing.assert_array_equal(one.keys, other.keys)
                np.testing.assert_array_equal(one.inverse, other.inverse)
                assert one.rows.tobytes() == other.rows.tobytes()
        if is_evicting and world_size == 1:
            assert made.counters.rows_evicted > 0
        counters = made.prefetches.counters
        assert counters.lookups == 12
        return counters.rows, counters.rows_refreshed

    counts = run_containers(
        world_size,
        body,
        exchange=ExchangeOptions(chunk_rows=4, row_wire_dtype="int8" if way == "int8" else "exact"),
    )
    if way != "evicting":
        # Only some were read again.
        assert 0 < sum(again for _, again in counts) < sum(rows for rows, _ in counts)


def test_ranks_exchange_rows_while_their_calling_threads_are_busy() -> None:
    def body(made: StepContainer) -> None:
        declare_tables(made, TABLES, "hkv", "adagrad", lr=0.1)
        ahead = made.prefetch([("user", np.arange(40))])
        (running,) = made.prefetches.unfinished
        running.future.result(30)  # no call of the container, as during a backward pass
        assert made.exchange.counters.wire_bytes_received.rows > 0
        ahead.finish()
        assert made.prefetches.counters.wait_seconds == 0

    run_containers(2, body, exchange=EXCHANGE)


def test_nothing_is_read_again_without_a_step_in_between() -> None:
    def body(made: StepContainer) -> None:
        declare_tables(made, TABLES, "hkv", "adagrad", lr=0.1)
        before = made.exchange.counters.wire_bytes_sent.headers
        made.prefetch(repeating_ids(0, made.collective.rank)).finish()
        sent = made.exchange.counters.wire_bytes_sent
        assert sent.headers - before == 512
        assert made.prefetches.counters.rows_refreshed == 0

    run_containers(2, body, exchange=EXCHANGE)


def test_bytes_of_a_refresh_match_the_documentation() -> None:
    """Headers, plus 8 bytes of position per changed row, plus the changed rows: pad(n (w + 1))."""

    def body(made: StepContainer) -> tuple[int, int]:
        made.declare(TABLES[0], StorageChoice("hkv"))
        rank = made.collective.rank
        keys = np.arange(100) if rank == 0 else np.empty(0, np.int64)
        found = made.lookup("user", keys)
        made.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
        ahead = made.prefetch([("user", np.arange(50, 150) if rank == 0 else keys)])
        made.apply(descend())
        before = made.exchange.counters.wire_bytes_sent
        kinds = [MessageKind.HEADERS, MessageKind.KEYS, MessageKind.ROWS]
        earlier = [getattr(before, kind.value) for kind in kinds]
        ahead.finish()
        sent = made.exchange.counters.wire_bytes_sent
        headers, places, rows = (
            getattr(sent, kind.value) - value for kind, value in zip(kinds, earlier, strict=True)
        )
        assert headers == 512
        assert rows == (places // 8 * (4 * 4 + 1) + 7) // 8 * 8
        return rank, places // 8

    sent = dict(run_containers(2, body, exchange=EXCHANGE))
    # The changed ones among 50 keys that the other rank owns.
    assert sent[0] == 0
    assert 0 < sent[1] < 50


class SlowStorage(MemoryStorage):
    """A storage that records the reading thread, and blocks finds until it is released."""

    readers: list[int]
    may_find: threading.Event
    fails = False

    def _find_impl(self, *arguments: Any) -> None:
        self.readers.append(threading.get_ident())
        assert self.may_find.wait(30)
        if self.fails:
            raise StorageIOError("the disk is on fire", table="user")
        super()._find_impl(*arguments)


def slow() -> SlowStorage:
    made = SlowStorage(TABLES[0])
    made.readers = []
    made.may_find = threading.Event()
    made.may_find.set()
    return made


def test_the_calling_thread_is_free_while_rows_are_found() -> None:
    storage = slow()
    with StepContainer() as made:
        made.declare(TABLES[0], storage)
        for seconds in (0.05, 0.5, 5):  # a busy machine may need longer to come to `finish`
            storage.may_find.clear()
            ahead = made.prefetch([("user", np.arange(5))])
            threading.Timer(seconds, storage.may_find.set).start()
            ahead.finish()
            if made.prefetches.counters.wait_seconds > 0:
                break
        assert made.prefetches.counters.wait_seconds > 0
    assert threading.get_ident() not in storage.readers


def test_a_failed_lookup_ahead_does_not_fail_the_step_of_one_process() -> None:
    storage = slow()
    with StepContainer() as made:
        made.declare(TABLES[0], storage)
        found = made.lookup("user", np.arange(5))
        made.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
        storage.fails = True
        ahead = made.prefetch([("user", np.arange(5))])
        made.quiesce()
        storage.fails = False
        made.apply(descend())
        assert made.counters.steps == 1
        with pytest.raises(StorageIOError, match="on fire"):
            ahead.finish()
        made.prefetch([("user", np.arange(5))]).finish()


def test_a_failed_lookup_ahead_ends_the_step_of_all_ranks() -> None:
    def body(made: StepContainer) -> BaseException:
        storage = slow()
        made.declare(TABLES[0], storage)
        found = made.lookup("user", np.arange(40))
        made.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
        storage.fails = made.collective.rank == 1
        made.prefetch([("user", np.arange(40))])
        with pytest.raises((StorageIOError, PeerFailure)) as caught:
            made.apply(descend())
        assert storage.size == 0
        return caught.value

    first, second = run_containers(2, body, 10.0, exchange=EXCHANGE)
    assert isinstance(second, StorageIOError)
    assert isinstance(first, PeerFailure)
    assert first.details["rank"] == 1
    assert first.details["step"] == 0


def test_a_rejected_step_does_not_change_prefetched_rows() -> None:
    with StepContainer() as made:
        declare_tables(made, TABLES, "hkv", "adagrad", lr=0.1)
        found = made.lookup("user", np.arange(5))
        made.resources.accumulate(found.shadow_id, np.full_like(found.rows, np.nan))
        ahead = made.prefetch([("user", np.arange(5))])
        with pytest.raises(NonFiniteGradientError):
            made.apply(descend())
        (early,) = ahead.finish()
        assert early.rows.tobytes() == found.rows.tobytes()
        assert made.prefetches.counters.rows_refreshed == 0


def test_a_lookup_ahead_ends_once() -> None:
    with StepContainer() as made:
        declare_tables(made, TABLES, "hkv", "adagrad", lr=0.1)
        dropped = made.prefetch(repeating_ids(0, 0))
        dropped.drop()
        dropped.drop()
        with pytest.raises(InvalidArgumentError, match="already finished or dropped"):
            dropped.finish()
        assert not made.prefetches.unfinished
