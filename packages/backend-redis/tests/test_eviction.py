"""A Redis that evicts rows when its memory is full is rejected, unless the user allows it."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from sparring import open_storage
from sparring.contracts import Storage, TableConfig
from sparring.errors import InvalidArgumentError, StorageIOError
from sparring_redis.testing.cluster import RedisCluster
from sparring_redis.testing.server import RedisServer, redis_server_missing

TABLE = TableConfig("films", 64)

pytestmark = pytest.mark.skipif(
    redis_server_missing() is not None, reason=redis_server_missing() or ""
)


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_a_server_that_removes_rows_is_rejected(own_redis_server: RedisServer, policy: str) -> None:
    own_redis_server.ask("CONFIG", "SET", "maxmemory-policy", policy)
    with pytest.raises(InvalidArgumentError, match=rf"'{policy}'.*noeviction.*allow_eviction"):
        open_storage("redis", TABLE, url=own_redis_server.url)
    assert own_redis_server.ask("KEYS", "*") == [], "nothing was written there"
    with open_storage("redis", TABLE, url=own_redis_server.url, allow_eviction=True) as storage:
        assert storage.size == 0


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
def test_a_full_server_loses_no_row(own_redis_server: RedisServer, policy: str) -> None:
    own_redis_server.ask("CONFIG", "SET", "maxmemory-policy", policy)
    own_redis_server.ask("CONFIG", "SET", "maxmemory", "6mb")
    written: list[np.ndarray] = []
    with open_storage("redis", TABLE, url=own_redis_server.url) as storage:
        with pytest.raises(StorageIOError, match="maxmemory"):
            _fill(storage, written)
        assert written
        assert storage.find(np.concatenate(written)).found.all()


def _fill(storage: Storage, written: list[np.ndarray]) -> None:
    for begin in range(0, 100_000, 1_000):
        keys = np.arange(begin, begin + 1_000)
        storage.upsert(keys, np.ones((1_000, 64), np.float32))
        written.append(keys)


def test_each_node_of_a_cluster_is_checked() -> None:
    with RedisCluster(3) as nodes:
        open_storage("redis", TABLE, url=nodes.url).close()
        for node in nodes.servers:
            node.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            with pytest.raises(InvalidArgumentError, match="'allkeys-lru'"):
                open_storage("redis", TABLE, url=nodes.url)
            node.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


def test_a_node_without_info_permission_does_not_hide_the_others() -> None:
    with RedisCluster(3) as nodes:
        open_storage("redis", TABLE, url=nodes.url).close()
        for silent in nodes.servers:
            silent.ask("ACL", "SETUSER", "default", "-info")
            for node in nodes.servers:
                if node is not silent:
                    node.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
                    with pytest.raises(InvalidArgumentError, match="'allkeys-lru'"):
                        open_storage("redis", TABLE, url=nodes.url)
                    node.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
            silent.ask("ACL", "SETUSER", "default", "+info")


def test_a_user_without_info_permission_continues_with_a_warning(
    own_redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own_redis_server.ask("ACL", "SETUSER", "trainer", "on", ">hunter2", "~*", "+@all", "-info")
    monkeypatch.setenv("FILMS_PASSWORD", "hunter2")
    with caplog.at_level(logging.WARNING):
        open_storage(
            "redis",
            TABLE,
            url=own_redis_server.url,
            username="trainer",
            password_environment="FILMS_PASSWORD",
        ).close()
    (line,) = caplog.messages
    assert "+info" in line
    assert "noeviction" in line
