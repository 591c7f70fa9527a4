"""Servers that the tests of a session share; each test has a separate prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from sparring_redis.testing.cluster import RedisCluster
from sparring_redis.testing.server import RedisServer, redis_server_missing


def _need_redis_server() -> None:
    if reason := redis_server_missing():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    """A standalone server, kept for the session."""
    _need_redis_server()
    with RedisServer() as started:
        yield started


@pytest.fixture(scope="session")
def cluster() -> Iterator[RedisCluster]:
    """Three masters, kept for the session."""
    _need_redis_server()
    with RedisCluster() as started:
        yield started


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A standalone server for one test, which may break it."""
    _need_redis_server()
    with RedisServer() as started:
        yield started


_NUMBERS = count()


@pytest.fixture
def new_prefix() -> Callable[[], str]:
    """Returns a new prefix."""
    return lambda: f"test{next(_NUMBERS)}"
