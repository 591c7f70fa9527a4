"""Each option of `server_options` has its effect, on a connection that sends frames by hand."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from sparring.contracts import TableConfig
from sparring_serve import (
    LookupServer,
    ParametersConfig,
    ServerConfig,
    ServingConfig,
    ShardPosition,
    ShardReplicas,
    open_parameter_server,
)
from sparring_serve.testing import FrameKind, MemoryTables, RawConnection, framed_message
from sparring_serve.testing.front_ends import FrontEnd
from sparring_serve.transport_options import server_options
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import SERVICE, PullRequest, TableIds

from .conftest import Serve

PULL = framed_message(encode(PullRequest((TableIds("item", bytes(8)),))))
PLACE = ShardPosition(ShardReplicas((("127.0.0.1:1",),)))
MAX_CONCURRENT_STREAMS, ACK = 3, 1

ServeOptions = Callable[..., FrontEnd]


@pytest.fixture
def serve_with(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> ServeOptions:
    """Starts servers; constants of the options are replaced by the given ones."""

    def start(max_deadline_seconds: float = 1, **constants: float) -> FrontEnd:
        for name, value in constants.items():
            monkeypatch.setattr(f"sparring_serve.transport_options.{name}", value)
        return serve(max_deadline_seconds=max_deadline_seconds, drain_seconds=0)

    return start


def first(connection: RawConnection, kind: FrameKind, seconds: float = 30) -> Any:
    """Returns the first frame of a kind that is not an acknowledgement."""
    found = (
        each for each in connection.frames(seconds) if each.kind == kind and not each.flags & ACK
    )
    return next(found, None)


def test_a_connection_may_have_128_calls(serve_with: ServeOptions) -> None:
    server = serve_with()
    for address in (server.address, server.health_address):
        with RawConnection(address) as connection:
            settings = first(connection, FrameKind.SETTINGS).settings
        assert settings[MAX_CONCURRENT_STREAMS] == 128


def test_an_old_connection_is_ended_after_its_calls(serve_with: ServeOptions) -> None:
    server = serve_with(max_deadline_seconds=60, _AGE_SECONDS=0.5)
    with RawConnection(server.address) as connection:
        begin = time.monotonic()
        stream = connection.begin(f"/{SERVICE}/Pull", timeout="60S")
        assert first(connection, FrameKind.GOAWAY) is not None
        assert time.monotonic() - begin > 0.3
        # The call in flight continues.
        connection.send(stream, PULL, is_last=True)
        assert connection.status(stream, 30) == 0
        assert connection.is_closed(30)


def test_calls_of_an_old_connection_have_the_grace_of_the_longest_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("_AGE_SECONDS", 0.3), ("_MIN_GRACE_SECONDS", 0.1)):
        monkeypatch.setattr(f"sparring_serve.transport_options.{name}", value)
    config = ServingConfig(server=ServerConfig(max_deadline_seconds=1, drain_seconds=0))
    tables = MemoryTables([TableConfig("item", 4)], {})
    with LookupServer(tables, config, PLACE, "127.0.0.1:0") as server:
        # A method that waits for its message longer than any deadline is cut off.
        server.service.limits = replace(server.service.limits, max_deadline_seconds=120)
        with RawConnection(server.address) as connection:
            begin = time.monotonic()
            connection.begin(f"/{SERVICE}/Describe")
            assert connection.is_closed(30)
            assert time.monotonic() - begin > 1.1


def test_the_grace_covers_saves_of_learning_shards(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given: list[float] = []
    monkeypatch.setattr(
        "sparring_serve.server.lookup_server.server_options",
        lambda seconds: given.append(seconds) or server_options(seconds),
    )
    parameters = ParametersConfig.model_validate({"tables": {"item": {"dim": 4}}})
    config = ServingConfig(parameters=parameters)
    open_parameter_server(config, address="127.0.0.1:0").close()
    assert given == [parameters.save_seconds] == [600]
    options = dict(server_options(600))
    assert options["grpc.max_connection_age_grace_ms"] == 600_000


@pytest.mark.parametrize("acks", [True, False])
def test_idle_connections_are_pinged_and_closed_if_nothing_answers(
    serve_with: ServeOptions, acks: bool
) -> None:
    server = serve_with(_KEEPALIVE_SECONDS=0.2, _KEEPALIVE_TIMEOUT_SECONDS=0.3)
    with RawConnection(server.address, acks_pings=acks) as connection:
        assert first(connection, FrameKind.PING) is not None
        assert connection.is_closed(2 if acks else 30) is not acks


@pytest.mark.parametrize(("seconds", "is_accepted"), [(0.05, True), (30.0, False)])
def test_clients_may_ping_at_the_allowed_rate(
    serve_with: ServeOptions, seconds: float, is_accepted: bool
) -> None:
    with RawConnection(serve_with(_MIN_PING_SECONDS=seconds).address) as connection:
        with suppress(ConnectionError):  # the server may have closed it
            for number in range(6):
                time.sleep(0.1)
                connection.send_frame(FrameKind.PING, 0, 0, struct.pack(">Q", number))
        kinds = [each.kind for each in connection.frames(0.5)]
    assert (FrameKind.GOAWAY in kinds) is not is_accepted
    assert kinds.count(FrameKind.PING) >= (6 if is_accepted else 1)


def test_pings_every_10_seconds_are_allowed() -> None:
    assert dict(server_options(1))["grpc.http2.min_ping_interval_without_data_ms"] == 10_000


def test_every_option_has_a_test_here() -> None:
    assert [name for name, _ in server_options(1)] == [
        "grpc.compression_enabled_algorithms_bitset",  # tested in test_refusals
        "grpc.max_concurrent_streams",
        "grpc.max_connection_age_ms",
        "grpc.max_connection_age_grace_ms",
        "grpc.keepalive_time_ms",
        "grpc.keepalive_timeout_ms",
        "grpc.http2.ping_timeout_ms",
        "grpc.keepalive_permit_without_calls",
        "grpc.http2.min_ping_interval_without_data_ms",
    ]
