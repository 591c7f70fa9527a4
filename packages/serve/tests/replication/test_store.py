"""A value of the store changes only for a caller that has read the newest one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from sparring.errors import ConfigError, StorageIOError
from sparring_redis.testing.server import RedisServer, redis_server_missing
from sparring_serve.replication.store import CoordinationStore, MemoryStore, open_store

REDIS = pytest.param(
    "redis",
    marks=pytest.mark.skipif(redis_server_missing() is not None, reason="needs redis-server"),
)


@pytest.fixture(params=["memory", REDIS])
def store(request: pytest.FixtureRequest) -> Iterator[CoordinationStore]:
    if request.param == "memory":
        yield MemoryStore()
        return
    with RedisServer() as server:
        store = open_store(server.url)
        yield store
        store.close()


def test_replace_changes_only_the_value_that_was_read(store: CoordinationStore) -> None:
    assert store.read("shard") is None
    assert not store.replace("shard", b"other", b"a")
    assert store.replace("shard", None, b"")  # an empty value is not an absent one
    assert not store.replace("shard", None, b"b")
    assert store.replace("shard", b"", b"\x00\xff")
    assert not store.replace("shard", b"", None)
    assert store.read("shard") == b"\x00\xff"
    assert store.replace("shard", b"\x00\xff", None)
    assert store.read("shard") is None


def test_values_expire(store: CoordinationStore) -> None:
    assert store.replace("lease", None, b"a", ttl_seconds=0.05)
    end = time.monotonic() + 30
    while store.read("lease") is not None and time.monotonic() < end:
        time.sleep(0.01)
    assert store.replace("lease", None, b"b", ttl_seconds=1000)
    assert store.replace("lease", b"b", b"b")
    assert store.read("lease") == b"b"


def test_concurrent_changes_are_never_lost(store: CoordinationStore) -> None:
    def count() -> None:
        for _ in range(50):
            while True:
                before = store.read("count")
                if store.replace("count", before, str(int(before or b"0") + 1).encode()):
                    break

    threads = [threading.Thread(target=count) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert store.read("count") == b"200"


def test_unreachable_store_raises() -> None:
    store = open_store("redis://127.0.0.1:1")
    with pytest.raises(StorageIOError, match=r"redis://127.0.0.1:1 failed.*check that"):
        store.replace("shard", None, b"a")


@pytest.mark.parametrize("url", ["etcd://host", "host:6379", "redis://:secret@host"])
def test_invalid_urls_are_rejected(url: str) -> None:
    with pytest.raises(ConfigError, match="coordination store") as raised:
        open_store(url)
    assert "secret" not in str(raised.value)
