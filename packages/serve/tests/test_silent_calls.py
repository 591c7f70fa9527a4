"""Calls that send nothing, a part, or everything slowly occupy no thread past their deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from sparring.contracts import TableConfig
from sparring_serve import (
    ClientConfig,
    LookupClient,
    LookupServer,
    ServerConfig,
    ServingConfig,
    ShardPosition,
    ShardReplicas,
    open_parameter_server,
)
from sparring_serve.testing import MemoryTables, RawConnection, framed_message
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import SERVICE, PullRequest, TableIds
from sparring_serve.wire.open_inference import HEALTH, INFERENCE, HealthRequest

LONG = ClientConfig(deadline_seconds=20)
PULL = framed_message(encode(PullRequest((TableIds("item", bytes(8)),))))
UNAUTHENTICATED, CANCELLED, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, OK = 16, 1, 3, 8, 0

Serve = Callable[..., LookupServer]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts servers of both roles."""
    monkeypatch.chdir(tmp_path)
    started: list[LookupServer] = []

    def start(role: str = "inference", **options: Any) -> LookupServer:
        server = ServerConfig(**{"poll_seconds": 3600, "drain_seconds": 0, **options})
        if role == "parameters":
            tables = {"item": {"dim": 4}}
            config = ServingConfig.model_validate({"parameters": {"tables": tables}})
            config = config.model_copy(update={"server": server})
            started.append(open_parameter_server(config, address="127.0.0.1:0"))
        else:
            position = ShardPosition(ShardReplicas((("127.0.0.1:1",),)))
            served = MemoryTables([TableConfig("item", 4)], {"item": {0: [1, 2, 3, 4]}})
            config = ServingConfig(server=server)
            started.append(LookupServer(served, config, position, "127.0.0.1:0"))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def connect() -> Iterator[Callable[[LookupServer], RawConnection]]:
    with ExitStack() as opened:
        yield lambda server: opened.enter_context(RawConnection(server.address))


def is_healthy(server: LookupServer, timeout: float = 10) -> bool:
    with grpc.insecure_channel(server.address) as channel:
        check = channel.unary_unary(f"/{HEALTH}/Check")
        answer: bytes = check(encode(HealthRequest("")), timeout=timeout)
        return answer == b"\x08\x01"


def wait_until(is_so: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("role", ["inference", "parameters"])
def test_silent_calls_without_a_token_are_rejected_at_once(
    serve: Serve, connect: Any, tmp_path: Path, role: str
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("pull " + "p" * 16)
    server = serve(role, token_file=tokens)
    connection = connect(server)
    methods = ("Pull", "Describe", "Push", "Save", "Refresh")
    streams = [connection.begin(f"/{SERVICE}/{methods[each % 5]}") for each in range(40)]
    streams.append(connection.begin(f"/{INFERENCE}/ModelInfer"))
    assert [connection.status(each, 10) for each in streams] == [UNAUTHENTICATED] * 41
    assert server.metrics.value("rejected_total", reason="token") == 41


def test_silent_calls_without_a_deadline_are_rejected_at_once(serve: Serve, connect: Any) -> None:
    server = serve("parameters", threads=1)
    connection = connect(server)
    streams = [
        connection.begin(f"/{SERVICE}/{name}") for name in ("Pull", "Push", "Flush", "Save", "Load")
    ]
    assert [connection.status(each, 10) for each in streams] == [INVALID_ARGUMENT] * 5


@pytest.mark.parametrize("role", ["inference", "parameters"])
def test_a_silent_call_occupies_a_thread_until_its_deadline_and_no_health_probe(
    serve: Serve, connect: Any, role: str
) -> None:
    server = serve(role, threads=2)
    connection = connect(server)
    begin = time.monotonic()
    silent = [connection.begin(f"/{SERVICE}/Pull", timeout="1500m") for _ in range(2)]
    half_sent = [connection.begin(f"/{SERVICE}/Pull", timeout="1500m") for _ in range(2)]
    for each in half_sent:
        connection.send(each, PULL[:-3])
    wait_until(lambda: len(server.watch._calls) == 2)
    assert is_healthy(server, timeout=1.2)
    assert time.monotonic() - begin < 1.4
    with LookupClient(server.address, LONG) as client:
        client.pull({"item": [0]})
    assert 1 < time.monotonic() - begin < 8
    wait_until(lambda: not server.watch._calls and not server._calls._num_calls)
    assert server.metrics.value("pulls_total", code="CANCELLED") >= 2
    assert silent


@pytest.mark.parametrize(
    ("path", "seconds"),
    [
        (f"/{SERVICE}/Describe", 0.4),
        (f"/{INFERENCE}/ModelInfer", 0.4),
        (f"/{INFERENCE}/ModelReady", 0.4),
        (f"/{HEALTH}/Check", 1.0),
        (f"/{INFERENCE}/ServerLive", 1.0),
    ],
)
def test_a_silent_call_of_a_method_that_needs_no_deadline_is_ended(
    serve: Serve, connect: Any, path: str, seconds: float
) -> None:
    server = serve(threads=1, max_deadline_seconds=0.4)
    connection = connect(server)
    begin = time.monotonic()
    stream = connection.begin(path)
    assert connection.status(stream, 10) == CANCELLED
    assert seconds - 0.1 < time.monotonic() - begin < seconds + 5
    assert is_healthy(server)


def test_methods_that_need_no_deadline_answer_calls_without_one(serve: Serve) -> None:
    server = serve()
    with grpc.insecure_channel(server.address) as channel:
        for path in (f"/{SERVICE}/Describe", f"/{INFERENCE}/ServerMetadata", f"/{HEALTH}/Check"):
            assert channel.unary_unary(path)(b"", timeout=None)


def test_a_call_without_a_message_is_named(serve: Serve, connect: Any) -> None:
    connection = connect(serve())
    stream = connection.begin(f"/{SERVICE}/Pull", timeout="5S", is_last=True)
    assert connection.status(stream, 10) == INVALID_ARGUMENT


def test_a_slow_message_is_answered(serve: Serve, connect: Any) -> None:
    connection = connect(serve(threads=1))
    stream = connection.begin(f"/{SERVICE}/Pull", timeout="9S")
    for position in range(len(PULL)):
        connection.send(stream, PULL[position : position + 1], is_last=position == len(PULL) - 1)
        time.sleep(0.02)
    assert connection.status(stream, 10) == OK


def test_cancelled_silent_calls_free_their_threads(serve: Serve, connect: Any) -> None:
    server = serve(threads=1)
    connection = connect(server)
    for _ in range(20):
        connection.cancel(connection.begin(f"/{SERVICE}/Pull", timeout="9S"))
    gone = RawConnection(server.address)
    gone.begin(f"/{SERVICE}/Pull", timeout="9S")
    gone.close()
    begin = time.monotonic()
    with LookupClient(server.address, LONG) as client:
        client.pull({"item": [0]})
    assert time.monotonic() - begin < 5


def test_a_busy_server_rejects_calls_and_stays_healthy(serve: Serve, connect: Any) -> None:
    server = serve(threads=1)
    connection = connect(server)
    for _ in range(16):
        connection.begin(f"/{SERVICE}/Pull", timeout="3S")
    wait_until(lambda: server._calls._num_calls == 16)
    assert is_healthy(server, timeout=2)
    with grpc.insecure_channel(server.address) as channel:
        pull = channel.unary_unary(f"/{SERVICE}/Pull")
        with pytest.raises(grpc.RpcError, match=r"16 calls .*increase server.threads") as info:
            pull(encode(PullRequest()), timeout=2)
    assert info.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert server.metrics.value("rejected_total", reason="calls") == 1
    assert server.metrics.value("pulls_total", code="RESOURCE_EXHAUSTED") == 1


def test_silent_probes_do_not_stop_a_server(serve: Serve, connect: Any) -> None:
    server = serve()
    connection = connect(server)
    for _ in range(100):
        connection.begin(f"/{HEALTH}/Check")
    wait_until(lambda: server._probes._num_calls == 32)
    begin = time.monotonic()
    with LookupClient(server.address, LONG) as client:
        client.pull({"item": [0]})
    assert time.monotonic() - begin < 3
    wait_until(lambda: server._probes._num_calls == 0)
    assert is_healthy(server)


def test_silent_streams_of_reflection_are_ended(
    serve: Serve, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("grpc_reflection", reason="needs sparring-serve[reflection]")
    monkeypatch.setattr("sparring_serve.server.reflection._STREAM_SECONDS", 0.5)
    server = serve(threads=1, reflection=True)
    connection = connect(server)
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    streams = [connection.begin(path) for _ in range(4)]
    with LookupClient(server.address, LONG) as client:
        client.pull({"item": [0]})
    assert is_healthy(server)
    assert [connection.status(each, 10) for each in streams] == [CANCELLED] * 4


def test_the_wait_for_a_thread_counts_as_time_of_a_pull(serve: Serve) -> None:
    server = serve(threads=1)
    tables = server.service.tables
    lookup, entered, go_on = tables.lookup, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        entered.set()
        assert go_on.wait(20)
        return lookup(*arguments)

    tables.lookup = slow  # type: ignore[method-assign]

    def seconds() -> float:
        [family] = [
            each
            for each in server.metrics.registry.families()
            if each.name == "sparring_serving_pull_seconds"
        ]
        return family.samples[0].value

    with LookupClient(server.address, ClientConfig(deadline_seconds=9)) as client:
        client.describe()
        first = threading.Thread(target=client.pull, args=({"item": [0]},))
        first.start()
        assert entered.wait(20)
        tables.lookup = lookup  # type: ignore[method-assign]
        second = threading.Thread(target=client.pull, args=({"item": [0]},))
        second.start()
        wait_until(lambda: server._calls._num_calls == 2)
        time.sleep(0.5)
        go_on.set()
        first.join()
        second.join()
    # Both took the time, but only one of them in the tables.
    assert seconds() > 0.9
    assert server.watch.waited_seconds() == 0
