"""Ranks meet in Redis."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from sparring import make_plugin_manager
from sparring.contracts import Membership, Rendezvous, ShardMap, validate_options
from sparring.errors import DeadlineError, InvalidArgumentError, SparringError
from sparring_redis.options import RedisRendezvousOptions
from sparring_redis.rendezvous import RedisRendezvous
from sparring_redis.testing.cluster import RedisCluster
from sparring_redis.testing.proxy import Fault, FaultProxy
from sparring_redis.testing.server import RedisServer
from sparring_testing.processes.deadlines import check_with_deadlines

_LAUNCHERS = ("RANK", "WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK")


@pytest.fixture
def meet(redis_server: RedisServer, new_prefix: Callable[[], str]) -> Any:
    prefix = new_prefix()

    def join(**options: Any) -> RedisRendezvous:
        given = {"url": redis_server.url, "prefix": prefix, **options}
        return RedisRendezvous(RedisRendezvousOptions(**given))

    return join


def test_it_is_found_by_its_name(redis_server: RedisServer, new_prefix: Callable[[], str]) -> None:
    descriptor = make_plugin_manager().rendezvous("redis")
    options = {"url": redis_server.url, "prefix": new_prefix(), "world_size": 1}
    met = descriptor.factory(validate_options("rendezvous", descriptor, options))
    assert isinstance(met, Rendezvous)
    assert met.membership() == Membership(rank=0, world_size=1)
    assert met.shard_map() == ShardMap.balanced(1)
    met.close()
    met.close()


@pytest.mark.parametrize("world_size", [2, 5])
def test_ranks_are_numbered_in_the_order_of_arrival(meet: Any, world_size: int) -> None:
    with ThreadPoolExecutor(world_size) as threads:
        met = list(threads.map(lambda _: meet(world_size=world_size), range(world_size)))
    places = [each.membership() for each in met]
    assert sorted(each.rank for each in places) == list(range(world_size))
    assert sorted(each.local_rank for each in places) == list(range(world_size))
    assert {each.local_world_size for each in places} == {world_size}
    owned = [
        each.shard_map().partitions_of(place.rank) for each, place in zip(met, places, strict=True)
    ]
    assert sorted(np.concatenate(owned).tolist()) == list(range(4096))


def test_one_rank_more_than_the_world_size_is_rejected(meet: Any) -> None:
    meet(world_size=1)
    with pytest.raises(InvalidArgumentError, match=r"all 1 seats of job 'job' are taken"):
        meet(world_size=1)
    assert meet(world_size=1, job="another").membership().rank == 0


def test_ranks_that_do_not_join_are_awaited_until_the_deadline(
    meet: Any, new_prefix: Callable[[], str]
) -> None:
    def check(seconds: float) -> None:
        start = time.monotonic()
        with pytest.raises(DeadlineError, match="1 of 2 ranks joined"):
            meet(world_size=2, start_seconds=seconds, prefix=new_prefix())
        # All default waits are at least ten seconds.
        assert seconds <= time.monotonic() - start < 10

    check_with_deadlines(check, (0.3, 3.0))


def test_the_launchers_variables_give_the_membership(
    meet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in _LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidArgumentError, match="found none of the variables"):
        meet()
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert meet().membership() == Membership(rank=2, world_size=3)


def test_a_value_set_by_one_rank_is_read_by_another(
    meet: Any, new_prefix: Callable[[], str]
) -> None:
    def check(seconds: float) -> None:
        prefix = new_prefix()
        first, second, other = (
            meet(world_size=1, job=job, prefix=prefix) for job in ("a", "a2", "b")
        )
        first.set("run", b"abc")
        assert first.get("run", 0.0) == b"abc"
        for stranger in (second, other):
            with pytest.raises(DeadlineError, match="'run'"):
                stranger.get("run", seconds)
        first.set("run", b"")
        assert first.get("run", 0.0) == b""

    check_with_deadlines(check, (0.01, 3.0))


_START = """
import sys
from sparring_redis.options import RedisRendezvousOptions
from sparring_redis.rendezvous import RedisRendezvous
url, prefix, address = sys.argv[1:]
met = RedisRendezvous(RedisRendezvousOptions(url=url, prefix=prefix))
if met.membership().rank == 0:
    met.set("address", address.encode())
print(met.get("address", 60.0).decode())
"""


def test_restarted_ranks_ignore_what_ended_ranks_left_in_redis(
    redis_server: RedisServer, new_prefix: Callable[[], str]
) -> None:
    """The agent of rank 0 has started its rank again; that of rank 1 has joined, and counts from 0."""
    prefix = new_prefix()

    def start(rank: int, number: int) -> str:
        time.sleep(0.3 * (1 - rank))  # Rank 1 first finds the values of the previous start.
        given = {"RANK": rank, "WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "x"}
        counted = {"TORCHELASTIC_RESTART_COUNT": number if rank == 0 else 0}
        environment = {**os.environ, **{k: str(v) for k, v in (given | counted).items()}}
        command = [sys.executable, "-c", _START, redis_server.url, prefix, str(number)]
        done = subprocess.run(
            command, env=environment, check=True, capture_output=True, timeout=120
        )
        return done.stdout.decode()

    with ThreadPoolExecutor(2) as threads:
        for number in range(3):
            assert [*threads.map(start, (0, 1), (number, number))] == [f"{number}\n"] * 2


def test_ranks_of_torchrun_wait_for_each_other_and_are_numbered_by_it(
    meet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DeadlineError, match=r"not all of 2 ranks of job 'job' started within 0\.3"):
        meet(start_seconds=0.3)
    with pytest.raises(InvalidArgumentError, match="remove world_size"):
        meet(world_size=2)


def test_get_waits_until_some_rank_sets_it(meet: Any) -> None:
    met = meet(world_size=1)
    setting = threading.Timer(0.2, met.set, ("late", b"\x00\xff"))
    start = time.monotonic()
    setting.start()
    assert met.get("late", 60.0) == b"\x00\xff"
    assert 0.1 < time.monotonic() - start < 20
    setting.join()


def test_get_waits_until_its_deadline(meet: Any) -> None:
    met = meet(world_size=1)

    def check(seconds: float) -> None:
        start = time.monotonic()
        with pytest.raises(DeadlineError, match=rf"no rank set 'never'.*within {seconds:g} s"):
            met.get("never", seconds)
        assert seconds <= time.monotonic() - start < 10

    check_with_deadlines(check, (0.2, 3.0))


def test_values_expire_in_redis(meet: Any, redis_server: RedisServer) -> None:
    met = meet(world_size=1, time_to_live_seconds=100, job="forgotten")
    met.set("run", b"abc")
    names = redis_server.ask("KEYS", "*{meeting:forgotten}*")
    assert len(names) == 2
    assert all(0 < redis_server.ask("TTL", name) <= 100 for name in names)


def test_it_meets_in_a_cluster_too(
    redis_cluster: RedisCluster, new_prefix: Callable[[], str]
) -> None:
    met = RedisRendezvous(
        RedisRendezvousOptions(url=redis_cluster.url, prefix=new_prefix(), world_size=1)
    )
    met.set("run", b"abc")
    assert met.get("run", 1.0) == b"abc"


def test_a_seat_is_taken_once_if_its_reply_is_lost(
    redis_server: RedisServer, new_prefix: Callable[[], str]
) -> None:
    with FaultProxy(redis_server.port) as proxy:
        proxy.arm(Fault(cut_reply_at=300), num_connections=1)
        options = RedisRendezvousOptions(url=proxy.url, prefix=new_prefix(), world_size=1)
        assert RedisRendezvous(options).membership().rank == 0


def test_a_stopped_redis_is_awaited_until_the_deadline(
    own_redis_server: RedisServer,
) -> None:
    def check(deadline: float) -> None:
        own_redis_server.kill()
        own_redis_server.start()
        met = RedisRendezvous(
            RedisRendezvousOptions(
                url=own_redis_server.url, world_size=1, deadline_seconds=deadline
            )
        )
        own_redis_server.kill()
        start = time.monotonic()
        with pytest.raises(SparringError, match=r"127\.0\.0\.1"):
            met.set("run", b"abc")
        with pytest.raises(SparringError, match=r"127\.0\.0\.1"):
            met.get("run", deadline)
        assert time.monotonic() - start < 4 * deadline

    check_with_deadlines(check, (0.5, 3.0))
