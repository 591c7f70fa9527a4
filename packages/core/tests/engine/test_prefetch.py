"""Prefetches that start before a step return the rows after it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from sparring.collective.local import LocalGroup
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import TableConfig
from sparring.engine.apply.gather import TableUpdate
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
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

TABLES = (
    TableConfig("user", 4, initializer=Uniform(-1, 1)),
    TableConfig("item", 3, "bfloat16", initializer=Uniform(-1, 1)),
)


def on_ranks(
    world_size: int, body: Callable[[StepContainer], Any], *, deadline: float = 30, **settings: Any
) -> list[Any]:
    group = LocalGroup(world_size, deadline_seconds=deadline)

    def run(collective: Collective) -> Any:
        made = StepContainer(
            collective=collective,
            rendezvous=ThreadRendezvous(world_size),
            exchange=ExchangeOptions(chunk_rows=4, **settings),
        )
        with made:
            return body(made)

    with ThreadPoolExecutor(world_size) as threads:
        futures = [threads.submit(run, group.join(rank)) for rank in range(world_size)]
        return [future.result() for future in futures]


def declare(made: StepContainer, **options: Any) -> dict[str, Any]:
    method = resolve_method("adagrad")
    hyper = parse_hyper(method, {"lr": 0.1})
    for table in TABLES:
        made.declare(table, StorageChoice("hkv", options))
        state = method.initial_state(table.dim, hyper, table.computing_dtype)
        made.set_state(table.name, state, "adagrad")
    return {table.name: MethodChoice(method, hyper, 1) for table in TABLES}


def by_rows(updates: Any) -> None:
    for each in updates:
        assert isinstance(each, TableUpdate)
        each.rows[:, : each.table.dim] -= 0.1 * each.gradients


def repeating_ids(step: int, rank: int) -> list[tuple[str, np.ndarray]]:
    """Returns batches that share many ids with the next one."""
    random = np.random.default_rng((step // 2, rank))
    some = random.integers(-25, 25, 0 if (step + rank) % 5 == 4 else 30)
    return [("user", some + step), ("item", some[::2].copy())]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("way", ["fused", "by rows", "evicting", "int8"])
def test_finish_returns_the_rows_of_a_lookup_after_the_step(world_size: int, way: str) -> None:
    def body(made: StepContainer) -> tuple[int, int]:
        is_evicting = way == "evicting"
        choices = declare(made, **({"capacity": 128, "policy": "lru"} if is_evicting else {}))
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
                made.apply(by_rows)
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

    counts = on_ranks(world_size, body, **({"row_wire_dtype": "int8"} if way == "int8" else {}))
    if way != "evicting":
        # Only some were read again.
        assert 0 < sum(again for _, again in counts) < sum(rows for rows, _ in counts)


def test_ranks_exchange_rows_while_their_calling_threads_are_busy() -> None:
    def body(made: StepContainer) -> None:
        declare(made)
        ahead = made.prefetch([("user", np.arange(40))])
        (running,) = made.prefetches.unfinished
        running.future.result(30)  # no call of the container, as during a backward pass
        assert made.exchange.counters.wire_bytes_received.rows > 0
        ahead.finish()
        assert made.prefetches.counters.wait_seconds == 0

    on_ranks(2, body)


def test_nothing_is_read_again_without_a_step_in_between() -> None:
    def body(made: StepContainer) -> None:
        declare(made)
        before = made.exchange.counters.wire_bytes_sent.headers
        made.prefetch(repeating_ids(0, made.collective.rank)).finish()
        sent = made.exchange.counters.wire_bytes_sent
        assert sent.headers - before == 512
        assert made.prefetches.counters.rows_refreshed == 0

    on_ranks(2, body)


def test_bytes_of_a_refresh_match_the_documentation() -> None:
    """Headers, plus 8 bytes of position per changed row, plus the changed rows: pad(n (w + 1))."""

    def body(made: StepContainer) -> tuple[int, int]:
        made.declare(TABLES[0], StorageChoice("hkv"))
        rank = made.collective.rank
        keys = np.arange(100) if rank == 0 else np.empty(0, np.int64)
        found = made.lookup("user", keys)
        made.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
        ahead = made.prefetch([("user", np.arange(50, 150) if rank == 0 else keys)])
        made.apply(by_rows)
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

    sent = dict(on_ranks(2, body))
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
        made.apply(by_rows)
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
            made.apply(by_rows)
        assert storage.size == 0
        return caught.value

    first, second = on_ranks(2, body, deadline=10)
    assert isinstance(second, StorageIOError)
    assert isinstance(first, PeerFailure)
    assert first.details["rank"] == 1
    assert first.details["step"] == 0


def test_a_rejected_step_does_not_change_prefetched_rows() -> None:
    with StepContainer() as made:
        declare(made)
        found = made.lookup("user", np.arange(5))
        made.resources.accumulate(found.shadow_id, np.full_like(found.rows, np.nan))
        ahead = made.prefetch([("user", np.arange(5))])
        with pytest.raises(NonFiniteGradientError):
            made.apply(by_rows)
        (early,) = ahead.finish()
        assert early.rows.tobytes() == found.rows.tobytes()
        assert made.prefetches.counters.rows_refreshed == 0


def test_a_lookup_ahead_ends_once() -> None:
    with StepContainer() as made:
        declare(made)
        dropped = made.prefetch(repeating_ids(0, 0))
        dropped.drop()
        dropped.drop()
        with pytest.raises(InvalidArgumentError, match="already finished or dropped"):
            dropped.finish()
        assert not made.prefetches.unfinished
