"""Ranks share one Redis, and each sees its own part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from sparring import LocalGroup, StepContainer, StorageChoice, open_storage
from sparring.contracts import ShardMap, Storage, TableConfig, partition
from sparring.errors import DeadlineError, InvalidArgumentError, StorageIOError
from sparring_redis.testing.cluster import RedisCluster
from sparring_redis.testing.proxy import Fault, FaultProxy
from sparring_redis.testing.server import RedisServer
from sparring_testing.processes.deadlines import check_with_deadlines
from sparring_testing.processes.table_steps import read_chunks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

TABLE = TableConfig("item", 4)
KEYS = np.arange(-2_000, 2_000, dtype=np.int64)
ROWS = np.random.default_rng(0).random((4_000, 4), np.float32)


@contextmanager
def opened(shard_map: ShardMap, **options: Any) -> Iterator[list[Storage]]:
    """The storage of each rank."""
    shards = map(shard_map.shard_of, range(shard_map.world_size))
    with ExitStack() as closing:
        made = (open_storage("redis", TABLE, shard=each, **options) for each in shards)
        yield [closing.enter_context(each) for each in made]


def scanned(storage: Storage) -> dict[int, bytes]:
    chunks = list(storage.scan(97))
    assert all(0 < len(each) <= 97 for each in chunks)
    return {key: row for key, (row, _) in read_chunks(chunks).items()}


@pytest.mark.parametrize("kind", ["standalone", "cluster"])
@pytest.mark.parametrize(
    "shard_map",
    [ShardMap.balanced(4), ShardMap.balanced(3), ShardMap(ShardMap.balanced(5).owners[::-1], 5)],
    ids=["4", "3", "5 reversed"],
)
def test_each_rank_sees_exactly_its_own_rows(
    redis_server: RedisServer,
    redis_cluster: RedisCluster,
    new_prefix: Callable[[], str],
    shard_map: ShardMap,
    kind: str,
) -> None:
    url = redis_server.url if kind == "standalone" else redis_cluster.url
    owners = shard_map.owners[partition(KEYS)]
    whole = {key: row.tobytes() for key, row in zip(KEYS.tolist(), ROWS, strict=True)}
    prefix = new_prefix()
    with opened(shard_map, url=url, prefix=prefix, num_buckets=16) as storages:
        for rank, storage in enumerate(storages):
            storage.upsert(KEYS[owners == rank], ROWS[owners == rank])
        for rank, storage in enumerate(storages):
            mine = KEYS[owners == rank].tolist()
            assert storage.size == len(mine)
            assert scanned(storage) == {key: whole[key] for key in mine}
        storages[1].clear()
        for rank, storage in enumerate(storages):
            assert storage.size == (0 if rank == 1 else (owners == rank).sum())
    with open_storage("redis", TABLE, url=url, prefix=prefix) as storage:
        assert storage.size == (owners != 1).sum()


def test_a_job_of_another_size_finds_the_rows(
    redis_server: RedisServer, new_prefix: Callable[[], str]
) -> None:
    prefix = new_prefix()
    whole = {key: row.tobytes() for key, row in zip(KEYS.tolist(), ROWS, strict=True)}
    for world_size in (2, 3, 1):
        shard_map = ShardMap.balanced(world_size)
        owners = shard_map.owners[partition(KEYS)]
        with opened(shard_map, url=redis_server.url, prefix=prefix, num_buckets=32) as storages:
            if world_size == 2:
                for rank, storage in enumerate(storages):
                    storage.upsert(KEYS[owners == rank], ROWS[owners == rank])
            found: dict[int, bytes] = {}
            for rank, storage in enumerate(storages):
                assert storage.find(KEYS[owners == rank]).found.all()
                found |= scanned(storage)
            assert found == whole
            assert sum(storage.size for storage in storages) == len(KEYS)


def test_the_ranks_of_a_job_open_their_own_parts(
    redis_server: RedisServer, new_prefix: Callable[[], str]
) -> None:
    choice = StorageChoice("redis", {"url": redis_server.url, "prefix": new_prefix()})
    group = LocalGroup(3)

    def train(rank: int) -> int:
        with StepContainer(
            collective=group.join(rank), rendezvous=ThreadRendezvous(3)
        ) as container:
            container.declare(TABLE, choice)
            owners = ShardMap.balanced(3).owners[partition(KEYS)]
            container.storage("item").upsert(KEYS[owners == rank], ROWS[owners == rank])
            container.collective.barrier()
            return container.num_rows("item")

    with ThreadPoolExecutor(3) as threads:
        sizes = list(threads.map(train, range(3)))
    assert sum(sizes) == len(KEYS)
    assert min(sizes) > 1_000


def test_a_replicated_table_is_rejected_on_many_ranks(
    redis_server: RedisServer, new_prefix: Callable[[], str]
) -> None:
    choice = StorageChoice("redis", {"url": redis_server.url, "prefix": new_prefix()})
    table = TableConfig("item", 4, placement="replicated")
    group = LocalGroup(2)

    def declare(rank: int) -> None:
        with StepContainer(
            collective=group.join(rank), rendezvous=ThreadRendezvous(2)
        ) as container:
            container.declare(table, choice)
            container.storage("item")

    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(declare, rank) for rank in range(2)]:
            with pytest.raises(InvalidArgumentError, match="one copy for all of them"):
                each.result()
    with StepContainer() as container:
        container.declare(table, choice)
        assert container.storage("item").size == 0


MANY_KEYS = np.arange(100_000, dtype=np.int64)
NARROW = TableConfig("item", 1)


def filled(redis_server: RedisServer, prefix: str) -> dict[str, Any]:
    """Many rows in one bucket, written with time to spare; the options that find them."""
    options = {"prefix": prefix, "num_buckets": 1}
    with open_storage("redis", NARROW, url=redis_server.url, **options) as storage:
        storage.upsert(MANY_KEYS, np.ones((len(MANY_KEYS), 1), np.float32))
    return options


@pytest.mark.parametrize("call", ["size", "clear", "open"])
def test_a_slow_server_does_not_prolong_a_call_of_many_commands(
    redis_server: RedisServer, new_prefix: Callable[[], str], call: str
) -> None:
    """Each reply arrives within the deadline; all replies together do not."""

    def check(deadline: float) -> None:
        options = {**filled(redis_server, new_prefix()), "deadline_seconds": deadline}
        shard = ShardMap.balanced(2).shard_of(0)
        with (
            FaultProxy(redis_server.port) as proxy,
            open_storage("redis", NARROW, shard=shard, url=proxy.url, **options) as storage,
        ):
            proxy.arm(Fault(delay_seconds=0.45 * deadline), 100)
            options["prefix"] = new_prefix()
            calls = {
                "size": lambda: storage.size,
                "clear": storage.clear,
                "open": lambda: open_storage("redis", NARROW, url=proxy.url, **options),
            }
            start = time.monotonic()
            with pytest.raises((DeadlineError, StorageIOError)):
                calls[call]()
            assert time.monotonic() - start < 1.4 * deadline
            proxy.arm(Fault())

    check_with_deadlines(check, (1.0, 4.0))


def test_a_scan_gets_time_for_the_rows_that_it_must_read(
    redis_server: RedisServer, new_prefix: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparring_redis.backend._ROWS_PER_DEADLINE", 20_000)
    options = filled(redis_server, new_prefix())
    shard = ShardMap.balanced(2).shard_of(0)
    num_rows = int((ShardMap.balanced(2).owners[partition(MANY_KEYS)] == 0).sum())

    def check(deadline: float) -> None:
        with (
            FaultProxy(redis_server.port) as proxy,
            open_storage(
                "redis",
                NARROW,
                shard=shard,
                url=proxy.url,
                deadline_seconds=deadline,
                **options,
            ) as storage,
        ):
            proxy.arm(Fault(delay_seconds=0.2 * deadline), 100)
            assert storage.size == num_rows

    check_with_deadlines(check, (0.5, 3.0))
