"""Each kind of failure, one by one, as the caller sees it."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from redis.exceptions import RedisError

from sparring import open_storage
from sparring.contracts import Storage, TableConfig
from sparring.errors import DeadlineError, StorageIOError
from sparring_redis.connections.connection import Access, RedisConnection
from sparring_redis.connections.deadline import Deadline
from sparring_redis.connections.location import Address
from sparring_redis.testing.cluster import RedisCluster
from sparring_redis.testing.proxy import Fault, FaultProxy
from sparring_redis.testing.server import RedisServer
from sparring_testing.processes.deadlines import check_with_deadlines

TABLE = TableConfig("films", 4)
KEYS = np.arange(1_000, dtype=np.int64)
DEADLINES = (0.6, 3.0, 9.0)
"""Of tests that wait for one."""
SLACK = 0.7
"""What a call may take beyond its deadline, as a part of that; who waits twice takes 1.0 of it."""


def rows_of(version: float) -> np.ndarray:
    return np.full((len(KEYS), 4), version, np.float32)


def opened(url: str, prefix: str, deadline_seconds: float = 60.0) -> Storage:
    """By default with a deadline that no test reaches."""
    return open_storage(
        "redis", TABLE, url=url, prefix=prefix, num_buckets=16, deadline_seconds=deadline_seconds
    )


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy(redis_server.port) as started:
        yield started


@pytest.fixture
def storage(proxy: FaultProxy, new_prefix: Callable[[], str]) -> Iterator[Storage]:
    """Behind the proxy, with version 1 of all rows."""
    with opened(proxy.url, new_prefix()) as made:
        made.upsert(KEYS, rows_of(1))
        yield made


def test_closed_and_refused_connections_leave_no_memory(own_redis_server: RedisServer) -> None:
    """A process with many objects collects cycles rarely."""
    address, deadline = Address("127.0.0.1", own_redis_server.port), Deadline(60.0)
    RedisConnection(address, Access(), deadline).close()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(20):
            RedisConnection(address, Access(), deadline).close()
        own_redis_server.kill()
        for _ in range(20):
            with pytest.raises(RedisError):
                RedisConnection(address, Access(), deadline)
        assert tracemalloc.get_traced_memory()[0] < 20 * 65_536
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize("num_bytes", [0, 1, 3, 40, 60])
def test_an_upsert_whose_replies_are_lost_is_sent_again(
    storage: Storage, proxy: FaultProxy, num_bytes: int
) -> None:
    proxy.arm(Fault(cut_reply_at=num_bytes))
    storage.upsert(KEYS, rows_of(2))
    assert (storage.find(KEYS).rows == 2).all()
    assert storage.size == len(KEYS)


@pytest.mark.parametrize("num_bytes", [0, 1, 100, 5_000, 20_000])
def test_half_of_a_reply_is_not_a_reply(
    storage: Storage, proxy: FaultProxy, num_bytes: int
) -> None:
    proxy.arm(Fault(cut_reply_at=num_bytes), num_connections=2)
    found = storage.find(KEYS)
    assert found.found.all()
    assert (found.rows == 1).all()


@pytest.mark.parametrize("num_bytes", [0, 10, 5_000, 30_000])
def test_half_of_a_request_is_sent_again(
    storage: Storage, proxy: FaultProxy, num_bytes: int
) -> None:
    proxy.arm(Fault(cut_request_at=num_bytes))
    storage.upsert(KEYS, rows_of(2))
    assert (storage.find(KEYS).rows == 2).all()


def test_an_erase_whose_reply_is_lost_is_not_sent_twice(
    storage: Storage, proxy: FaultProxy
) -> None:
    proxy.arm(Fault(cut_reply_at=0))
    with pytest.raises(StorageIOError, match=r"cannot be repeated safely.*call again"):
        storage.erase(KEYS[:300])
    # It ran, and only the number of erased rows is lost.
    assert storage.size == len(KEYS) - 300
    assert storage.erase(KEYS[:300]) == 0
    assert storage.erase(KEYS[300:400]) == 100


def stalled(num_bytes: int) -> Callable[[float], Fault]:
    return lambda deadline: Fault(stall_reply_at=num_bytes)


def trickling(deadline: float) -> Fault:
    return Fault(trickle_seconds=deadline / 30)


@pytest.mark.parametrize(
    "fault_for",
    [stalled(0), stalled(20), trickling],
    ids=["nothing comes", "half comes", "byte by byte"],
)
def test_an_unfinished_reply_is_awaited_until_the_deadline(
    proxy: FaultProxy, new_prefix: Callable[[], str], fault_for: Callable[[float], Fault]
) -> None:
    def check(deadline: float) -> None:
        proxy.arm(Fault())
        with opened(proxy.url, new_prefix(), deadline) as storage:
            storage.upsert(KEYS, rows_of(1))
            for call in (
                storage.find,
                lambda keys: storage.upsert(keys, rows_of(1)),
                storage.erase,
            ):
                proxy.arm(fault_for(deadline), num_connections=100)
                start = time.monotonic()
                with pytest.raises((DeadlineError, StorageIOError), match=r"127\.0\.0\.1"):
                    call(KEYS)
                assert time.monotonic() - start < (1 + SLACK) * deadline
            proxy.arm(Fault())
            storage.upsert(KEYS, rows_of(3))
            assert (storage.find(KEYS).rows == 3).all()

    check_with_deadlines(check, DEADLINES)


def test_a_delayed_write_does_not_overwrite_a_newer_one(
    proxy: FaultProxy, new_prefix: Callable[[], str]
) -> None:
    """The delayed write reaches the server after its caller gave up, and a newer row is there."""
    newest: list[np.ndarray] = []

    def check(deadline: float) -> None:
        proxy.arm(Fault())
        with opened(proxy.url, new_prefix(), deadline) as storage:
            storage.upsert(KEYS, rows_of(1))
            proxy.arm(Fault(delay_seconds=2 * deadline))
            with pytest.raises(DeadlineError, match=r"may have.*same call completes it"):
                storage.upsert(KEYS, rows_of(2))
            storage.upsert(KEYS, rows_of(3))
            time.sleep(1.2 * deadline)
            newest.append(storage.find(KEYS).rows)

    check_with_deadlines(check, DEADLINES)
    # No machine is so slow that this may be tried again.
    (rows,) = newest
    assert (rows == 3).all()


def test_a_stopped_server_is_awaited_until_the_deadline(
    own_redis_server: RedisServer, new_prefix: Callable[[], str]
) -> None:
    def check(deadline: float) -> None:
        with opened(own_redis_server.url, new_prefix(), deadline) as storage:
            storage.upsert(KEYS, rows_of(1))
            own_redis_server.signal(signal.SIGSTOP)
            try:
                start = time.monotonic()
                said = rf"find of table 'films'.*within {deadline:g} s"
                with pytest.raises(DeadlineError, match=said):
                    storage.find(KEYS)
                assert deadline <= time.monotonic() - start < (1 + SLACK) * deadline
            finally:
                own_redis_server.signal(signal.SIGCONT)
            assert (storage.find(KEYS).rows == 1).all()

    check_with_deadlines(check, DEADLINES)


def test_a_missing_server_is_named(
    own_redis_server: RedisServer, new_prefix: Callable[[], str]
) -> None:
    named = rf"127\.0\.0\.1:{own_redis_server.port}.*server"

    def check(deadline: float) -> None:
        own_redis_server.kill()
        own_redis_server.start()
        with opened(own_redis_server.url, new_prefix(), deadline) as storage:
            own_redis_server.kill()
            start = time.monotonic()
            with pytest.raises((StorageIOError, DeadlineError), match=named):
                storage.find(KEYS)
            assert time.monotonic() - start < (1 + SLACK) * deadline
            with pytest.raises(StorageIOError, match="cannot be reached"):
                storage.size  # noqa: B018 - reading it asks the server
        with pytest.raises(StorageIOError, match="cannot be reached"):
            opened(own_redis_server.url, "any", deadline)

    check_with_deadlines(check, DEADLINES)


def test_an_upsert_that_one_node_rejects_raises_and_succeeds_when_repeated(
    new_prefix: Callable[[], str],
) -> None:
    with RedisCluster(2) as nodes, opened(nodes.url, new_prefix()) as storage:
        storage.upsert(KEYS, rows_of(1))
        full = nodes.servers[0]
        full.ask("CONFIG", "SET", "maxmemory", "1")
        start = time.monotonic()
        with pytest.raises(StorageIOError, match=r"of 16 commands were rejected.*maxmemory") as no:
            storage.upsert(KEYS, rows_of(2))
        assert time.monotonic() - start < 30, "what is refused is not tried again"
        assert "Repeating the same call" in str(no.value)
        found = storage.find(KEYS).rows
        assert {1.0, 2.0} == set(np.unique(found).tolist())
        assert (found == found[:, :1]).all()
        full.ask("CONFIG", "SET", "maxmemory", "0")
        storage.upsert(KEYS, rows_of(2))
        assert (storage.find(KEYS).rows == 2).all()


def test_an_idle_connection_that_the_server_closed_costs_nothing(
    redis_server: RedisServer, new_prefix: Callable[[], str]
) -> None:
    with opened(redis_server.url, new_prefix()) as storage:
        storage.upsert(KEYS, rows_of(1))
        redis_server.ask("CLIENT", "KILL", "TYPE", "normal")
        # Also calls that must not be sent twice.
        assert storage.erase(KEYS) == len(KEYS)


def _find_all(storage: Storage, answer: multiprocessing.queues.Queue[bool]) -> None:
    answer.put(bool((storage.find(KEYS).rows == 1).all()))


def test_a_forked_process_has_separate_connections(
    redis_server: RedisServer, new_prefix: Callable[[], str]
) -> None:
    context = multiprocessing.get_context("fork")
    with opened(redis_server.url, new_prefix()) as storage:
        storage.upsert(KEYS, rows_of(1))
        before = _num_connections(redis_server)
        answer = context.Queue()
        child = context.Process(target=_find_all, args=(storage, answer), daemon=True)
        child.start()
        assert answer.get(timeout=30)
        child.join()
        # One for the child, and one to query the list.
        assert _num_connections(redis_server) == before + 2
        assert (storage.find(KEYS).rows == 1).all()
        assert _num_connections(redis_server) == before + 3


def _num_connections(redis_server: RedisServer) -> int:
    """How many the server has accepted so far."""
    (line,) = [
        each
        for each in redis_server.ask("INFO", "stats").splitlines()
        if each.startswith(b"total_connections_received:")
    ]
    return int(line.partition(b":")[2])
