"""The kit of core, on a standalone Redis and on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparring.contracts import Storage, TableConfig
from sparring_redis.backend import RedisStorage
from sparring_redis.estimate import estimate_redis_bytes
from sparring_redis.options import RedisOptions
from sparring_redis.testing.cluster import RedisCluster
from sparring_redis.testing.server import RedisServer
from sparring_testing.storages.storage_tests import StorageTests


class _OnRedis(StorageTests):
    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def make_storage(self, url: str, new_prefix: Callable[[], str]) -> Any:
        def make(table: TableConfig) -> Storage:
            # Small, so that buckets hold more than one row.
            options = RedisOptions(url=url, prefix=new_prefix(), num_buckets=16)
            return RedisStorage(table, options)

        return make

    @pytest.fixture
    def reopen_storage(self) -> Any:
        return lambda closed: RedisStorage(closed.table, closed.options)

    @pytest.fixture
    def estimate(self) -> Any:
        return lambda storage, rows: estimate_redis_bytes(storage.table, storage.options, rows)


class TestStandalone(_OnRedis):
    """One server."""

    @pytest.fixture
    def url(self, redis_server: RedisServer) -> str:
        return redis_server.url


@pytest.mark.slow  # test_shards.py and test_caches.py use a cluster in short runs
class TestCluster(_OnRedis):
    """Three masters."""

    @pytest.fixture
    def url(self, redis_cluster: RedisCluster) -> str:
        return redis_cluster.url
