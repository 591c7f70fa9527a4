"""A Redis server for the tests of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from .stream_files import WritableRedis

_NUMBERS = count()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Any]:
    """A server, kept for the session."""
    pytest.importorskip("redis", reason='pip install "sparring-train[redis]"')
    servers = pytest.importorskip("sparring_redis.testing.server", reason="starts a server")
    if reason := servers.redis_server_missing():
        pytest.skip(reason)
    with servers.RedisServer() as started:
        yield started


@pytest.fixture
def new_redis_streams(redis_server: Any) -> Callable[..., WritableRedis]:
    """Returns streams with new names."""

    def make(number: int = 1) -> WritableRedis:
        names = [f"clicks{next(_NUMBERS)}" for _ in range(number)]
        return WritableRedis(redis_server.address, names)

    return make
