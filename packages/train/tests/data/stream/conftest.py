"""A Redis server for the tests of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from .stream_files import WritableRedis, WritableTopic

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


@pytest.fixture(scope="session")
def kafka_broker() -> tuple[Any, str]:
    """A simulated broker in this process: its producer and its address."""
    kafka = pytest.importorskip("confluent_kafka", reason='pip install "sparring-train[kafka]"')
    producer = kafka.Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1})
    [broker] = producer.list_topics(timeout=10).brokers.values()
    return producer, f"{broker.host}:{broker.port}"


@pytest.fixture
def new_topic(kafka_broker: tuple[Any, str]) -> Callable[[], WritableTopic]:
    """Returns a new topic, which a request for it creates."""

    def make() -> WritableTopic:
        producer, address = kafka_broker
        topic = f"clicks{next(_NUMBERS)}"
        numbers = producer.list_topics(topic, 10).topics[topic].partitions
        return WritableTopic(producer, address, topic, len(numbers))

    return make
