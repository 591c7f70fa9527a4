"""Calls that send nothing, a part, or everything slowly delay no other call."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from sparring_serve import (
    ClientConfig,
    LookupClient,
)
from sparring_serve.server.call_lane import CallLane
from sparring_serve.server.silent_calls import MAX_SILENT_CALLS, SilentCalls, num_slow_calls
from sparring_serve.testing import RawConnection, framed_message
from sparring_serve.testing.front_ends import (
    FrontEnd,
    NativeFrontEnd,
    PythonFrontEnd,
    call,
    read_metrics,
)
from sparring_serve.testing.memory_servers import open_learning_server, open_memory_server
from sparring_serve.wire.fields import MAX_BYTES, encode
from sparring_serve.wire.messages import SERVICE, PullRequest, TableIds
from sparring_serve.wire.open_inference import HEALTH, INFERENCE
from sparring_testing.processes.deadlines import check_with_deadlines
from sparring_testing.processes.waiting import wait_until

from .conftest import KINDS, NATIVE, Serve

LONG = ClientConfig(deadline_seconds=60)
# Limit of waits for a reply, which a free machine sends within milliseconds.
PATIENCE = 60
PULL = framed_message(encode(PullRequest((TableIds("item", bytes(8)),))))
UNAUTHENTICATED, CANCELLED, INVALID_ARGUMENT, OK = 16, 1, 3, 0

KINDS_AND_LEARNING = pytest.mark.parametrize("kind", [*KINDS, "parameters"])
"""Runs a test with both servers of the role inference, and with one of the role parameters."""


@pytest.fixture
def serve(kind: str, folder: Any, open_servers: Serve, closing: ExitStack, tmp_path: Path) -> Serve:
    """Starts servers of one kind."""

    def start(**server: Any) -> FrontEnd:
        server = {"drain_seconds": 0, **server}
        if kind != "parameters":
            return open_servers(kind, folder, **server)
        server |= {"metrics_port": 0, "health_port": 0}
        return closing.enter_context(
            PythonFrontEnd(lambda: open_learning_server(tmp_path, server=server))
        )

    return start


@pytest.fixture
def connect(closing: ExitStack) -> Callable[[FrontEnd], RawConnection]:
    return lambda server: closing.enter_context(RawConnection(server.address))


def is_healthy(server: FrontEnd, timeout: float = PATIENCE) -> bool:
    return call(server.address, f"{HEALTH}/Check", timeout=timeout)[3] == b"\x08\x01"


@pytest.mark.parametrize("kind", [NATIVE])
def test_connections_are_accepted_again_after_too_many(serve: Serve) -> None:
    server = serve()
    assert isinstance(server, NativeFrontEnd)
    server.limit_files(8)
    host, port = server.address.split(":")
    with ExitStack() as opened:
        for _ in range(20):
            last = opened.enter_context(socket.create_connection((host, int(port)), timeout=9))
        assert last.recv(1) == b""  # so its client can use another replica
        assert not is_healthy(server, timeout=1)
    wait_until(lambda: is_healthy(server, timeout=1), PATIENCE)


@KINDS_AND_LEARNING
def test_silent_calls_without_a_token_are_rejected_at_once(
    serve: Serve, connect: Any, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("pull " + "p" * 16)
    server = serve(token_file=tokens)
    connection = connect(server)
    methods = ("Pull", "Describe", "Push", "Save", "Refresh")
    streams = [connection.begin(f"/{SERVICE}/{methods[each % 5]}") for each in range(40)]
    streams.append(connection.begin(f"/{INFERENCE}/ModelInfer"))
    assert [connection.status(each, PATIENCE) for each in streams] == [UNAUTHENTICATED] * 41
    assert read_metrics(server)['rejected_total{reason="token"}'] == 41


@KINDS_AND_LEARNING
def test_silent_calls_without_a_deadline_are_rejected_at_once(
    serve: Serve, connect: Any, kind: str
) -> None:
    connection = connect(serve(threads=1))
    changes = ("Push", "Flush", "Save", "Load") if kind == "parameters" else ("Scan", "Refresh")
    streams = [connection.begin(f"/{SERVICE}/{name}") for name in ("Pull", *changes)]
    assert {connection.status(each, PATIENCE) for each in streams} == {INVALID_ARGUMENT}


@KINDS_AND_LEARNING
def test_silent_calls_delay_neither_calls_nor_health_probes(serve: Serve, connect: Any) -> None:
    def check(deadline: float) -> None:
        server = serve(threads=2)
        connection = connect(server)
        begin = time.monotonic()
        timeout = f"{round(deadline * 1000)}m"
        silent = [connection.begin(f"/{SERVICE}/Pull", timeout=timeout) for _ in range(2)]
        half_sent = [connection.begin(f"/{SERVICE}/Pull", timeout=timeout) for _ in range(2)]
        for each in half_sent:
            connection.send(each, PULL[:-3])
        time.sleep(0.1)  # until they have arrived
        assert is_healthy(server, timeout=0.8 * deadline)
        assert time.monotonic() - begin < 0.9 * deadline
        with LookupClient(server.address, LONG) as client:
            client.pull({"item": [0]})
        assert time.monotonic() - begin < 0.9 * deadline
        cancelled = 'pulls_total{code="CANCELLED",table=""}'
        wait_until(lambda: read_metrics(server).get(cancelled, 0) >= 2, PATIENCE)
        assert silent

    check_with_deadlines(check, (1.5, 9.0))


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
    assert connection.status(stream, PATIENCE) == CANCELLED
    assert time.monotonic() - begin > seconds - 0.1
    assert is_healthy(server)


def test_a_call_that_ends_before_its_message_has_arrived_is_cancelled(
    serve: Serve, connect: Any
) -> None:
    connection = connect(serve())
    half = connection.begin(f"/{SERVICE}/Pull", timeout="300m")
    connection.send(half, PULL[:-3])
    assert connection.status(half, PATIENCE) in (None, CANCELLED, 4)


def test_methods_that_need_no_deadline_answer_calls_without_one(serve: Serve) -> None:
    server = serve()
    with grpc.insecure_channel(server.address) as channel:
        for path in (f"/{SERVICE}/Describe", f"/{INFERENCE}/ServerMetadata", f"/{HEALTH}/Check"):
            assert channel.unary_unary(path)(b"", timeout=None)


def test_a_call_without_a_message_is_named(serve: Serve, connect: Any) -> None:
    connection = connect(serve())
    stream = connection.begin(f"/{SERVICE}/Pull", timeout="5S", is_last=True)
    assert connection.status(stream, PATIENCE) == INVALID_ARGUMENT


def test_a_slow_message_is_answered(serve: Serve, connect: Any) -> None:
    connection = connect(serve(threads=1))
    stream = connection.begin(f"/{SERVICE}/Pull", timeout="9S")
    for position in range(len(PULL)):
        connection.send(stream, PULL[position : position + 1], is_last=position == len(PULL) - 1)
        time.sleep(0.02)
    assert connection.status(stream, PATIENCE) == OK


def test_cancelled_silent_calls_free_their_threads(serve: Serve, connect: Any) -> None:
    server = serve(threads=1, max_deadline_seconds=120)
    connection = connect(server)
    for _ in range(20):
        connection.cancel(connection.begin(f"/{SERVICE}/Pull", timeout="90S"))
    gone = RawConnection(server.address)
    gone.begin(f"/{SERVICE}/Pull", timeout="90S")
    gone.close()
    with LookupClient(server.address, LONG) as client:
        client.pull({"item": [0]})


@KINDS_AND_LEARNING
def test_renewed_silent_calls_end_the_oldest_ones_and_no_call_with_a_message(
    serve: Serve, connect: Any
) -> None:
    server, cancelled = (
        serve(threads=1, max_deadline_seconds=120, max_bytes_in_flight=16 << 30),
        'pulls_total{code="CANCELLED",table=""}',
    )
    connections = [connect(server) for _ in range(3)]
    streams = []
    with LookupClient(server.address, LONG) as client:
        for connection in connections:
            for _ in range(100):
                streams.append((connection, connection.begin(f"/{SERVICE}/Pull", timeout="90S")))
            client.pull({"item": [0]})
        wait_until(
            lambda: read_metrics(server).get(cancelled, 0) >= 300 - MAX_SILENT_CALLS, PATIENCE
        )
        client.pull({"item": [0]})
    assert is_healthy(server)
    assert read_metrics(server)[cancelled] < 350 - MAX_SILENT_CALLS
    connection, newest = streams[-1]
    connection.send(newest, PULL, is_last=True)
    assert connection.status(newest, PATIENCE) == OK


@KINDS_AND_LEARNING
def test_parts_of_messages_need_no_more_memory_than_calls_in_flight(
    serve: Serve, connect: Any
) -> None:
    connection = connect(serve(max_deadline_seconds=120, max_bytes_in_flight=5 * MAX_BYTES))
    streams = [connection.begin(f"/{SERVICE}/Pull", timeout="90S") for _ in range(20)]
    for each in streams:
        connection.send(each, PULL[:-3])

    def cancelled() -> list[int]:
        # A server with several threads does not begin calls in the order of their headers.
        return [each for each in streams if connection.status(each, 0.01) == CANCELLED]

    wait_until(lambda: len(cancelled()) == 15, seconds=PATIENCE)
    slow = sorted({*streams} - {*cancelled()})
    for each in slow:
        connection.send(each, PULL[-3:], is_last=True)
    assert [connection.status(each, PATIENCE) for each in slow] == [OK] * 5


@pytest.mark.parametrize(("size", "number"), [(1 << 16, 4), (1 << 30, 16), (1 << 40, 256)])
def test_the_number_of_calls_that_may_be_slow(size: int, number: int) -> None:
    assert num_slow_calls(size) == number


def test_the_address_with_most_silent_calls_loses_its_oldest() -> None:
    silent, ended = SilentCalls(max_calls=4), []
    with ExitStack() as waiting:
        for peer in ("ipv4:10.0.0.1:7", "ipv4:10.0.0.2:7", "ipv4:10.0.0.2:8", "ipv4:10.0.0.2:9"):
            waiting.enter_context(silent.wait(peer, partial(ended.append, peer)))
        for port in range(3):
            peer = f"ipv4:10.0.0.3:{port}"
            waiting.enter_context(silent.wait(peer, partial(ended.append, peer)))
        assert ended == ["ipv4:10.0.0.2:7", "ipv4:10.0.0.2:8", "ipv4:10.0.0.3:0"]
    with ExitStack() as waiting:
        for _ in range(4):
            waiting.enter_context(silent.wait("ipv4:10.0.0.1:7", partial(ended.append, "again")))
    assert "again" not in ended


def test_calls_of_a_lane_begin_in_their_order_or_not_at_all() -> None:
    lane = CallLane("test", 1, 16)
    assert lane.begin(PATIENCE)
    begun: list[int] = []

    def answer(number: int) -> None:
        assert lane.begin(PATIENCE)
        begun.append(number)
        lane.end()

    waiting = [threading.Thread(target=answer, args=(each,)) for each in range(5)]
    for position, each in enumerate(waiting):
        each.start()
        wait_until(lambda size=position + 1: len(lane._queue) == size, PATIENCE)
    assert not lane.begin(0.01)
    lane.end()
    for each in waiting:
        each.join()
    assert begun == [0, 1, 2, 3, 4]
    assert lane.begin(0)
    lane.close()


def test_a_busy_server_rejects_calls_and_stays_healthy(serve: Serve) -> None:
    server = serve(threads=1, max_deadline_seconds=120)
    # Ids without rows, whose initial values take longer than their way to the server.
    ids = np.arange(1_000, 101_000)
    content = encode(PullRequest((TableIds("item", ids.tobytes()),)))
    with grpc.insecure_channel(server.address) as channel:
        pull = channel.unary_unary(f"/{SERVICE}/Pull")
        calls = [pull.future(content, timeout=90) for _ in range(80)]
        assert is_healthy(server)
        rejected = [each.exception() for each in calls if each.exception() is not None]
    assert 0 < len(rejected) < 80
    assert {each.code() for each in rejected} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert all("16 calls (16 per thread of server.threads)" in each.details() for each in rejected)
    counted = read_metrics(server)
    assert counted['rejected_total{reason="calls"}'] == len(rejected)
    assert counted['pulls_total{code="RESOURCE_EXHAUSTED",table=""}'] == len(rejected)


def test_silent_probes_do_not_stop_a_server(serve: Serve, connect: Any) -> None:
    server = serve()
    connection = connect(server)
    streams = [connection.begin(f"/{HEALTH}/Check") for _ in range(100)]
    with LookupClient(server.address, LONG) as client:
        client.pull({"item": [0]})
    statuses = [connection.status(each, PATIENCE) for each in streams]
    assert statuses == [CANCELLED] * 100
    assert is_healthy(server)


def test_silent_streams_of_reflection_are_ended(
    closing: ExitStack, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("grpc_reflection", reason="needs sparring-serve[reflection]")
    monkeypatch.setattr("sparring_serve.server.reflection._STREAM_SECONDS", 0.5)
    server = closing.enter_context(open_memory_server(threads=1, drain_seconds=0, reflection=True))
    connection = connect(server)
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    streams = [connection.begin(path) for _ in range(4)]
    with LookupClient(server.address, LONG) as client:
        client.pull({"item": [0]})
    assert is_healthy(server)
    assert [connection.status(each, PATIENCE) for each in streams] == [CANCELLED] * 4


def test_the_wait_for_a_thread_counts_as_time_of_a_pull(
    closing: ExitStack,
) -> None:
    server = closing.enter_context(open_memory_server(threads=1, drain_seconds=0))
    tables = server.service.tables
    lookup, entered, go_on = tables.lookup, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        entered.set()
        assert go_on.wait(PATIENCE)
        return lookup(*arguments)

    tables.lookup = slow  # type: ignore[method-assign]

    def seconds() -> float:
        [family] = [
            each
            for each in server.metrics.registry.families()
            if each.name == "sparring_serving_pull_seconds"
        ]
        return family.samples[0].value

    with LookupClient(server.address, LONG) as client:
        client.describe()
        first = threading.Thread(target=client.pull, args=({"item": [0]},))
        first.start()
        assert entered.wait(PATIENCE)
        tables.lookup = lookup  # type: ignore[method-assign]
        second = threading.Thread(target=client.pull, args=({"item": [0]},))
        second.start()
        wait_until(lambda: server._calls._num_calls == 2, PATIENCE)
        time.sleep(0.5)
        go_on.set()
        first.join()
        second.join()
    # Both took the time, but only one of them in the tables.
    assert seconds() > 0.9
    assert server.watch.waited_seconds() == 0
