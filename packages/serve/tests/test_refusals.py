"""Mismatches are rejected, and the message names both sides: calls over a real port."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from sparring import SaveOptions, StepContainer, StorageChoice
from sparring.contracts import TableConfig
from sparring.errors import ConfigError, InvalidArgumentError, StorageIOError, UnknownTableError
from sparring_serve import (
    ClientConfig,
    LookupClient,
    LookupServer,
    ServerConfig,
    ServingConfig,
    ShardPosition,
    ShardReplicas,
)
from sparring_serve.publishing.publisher import PublisherOptions, publish_newest
from sparring_serve.testing import MemoryTables
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import SERVICE, PullRequest, TableIds

PLACE = ShardPosition(ShardReplicas((("127.0.0.1:1",),)))
LONG = ClientConfig(deadline_seconds=20)

Serve = Callable[..., LookupServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server with one table, possibly on the port of a stopped server."""
    started: list[LookupServer] = []

    def start(
        table: str = "item", dim: int = 4, address: str = "127.0.0.1:0", **options: Any
    ) -> LookupServer:
        tables = MemoryTables([TableConfig(table, dim)], {table: {7: [1.0] * dim}})
        config = ServingConfig(server=ServerConfig(**{"poll_seconds": 3600, **options}))
        started.append(LookupServer(tables, config, PLACE, address))
        return started[-1]

    yield start
    for each in started:
        each.close()


def refused(server: LookupServer, request: PullRequest | bytes, **options: Any) -> tuple[str, str]:
    """Status and message of a call of a client of any make."""
    content = request if isinstance(request, bytes) else encode(request)
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/Pull")
        with pytest.raises(grpc.RpcError) as caught:
            call(content, **{"timeout": 9, **options})
    return caught.value.code().name, caught.value.details()


def of(ids: int, table: str = "item") -> PullRequest:
    return PullRequest((TableIds(table, bytes(8 * ids)),))


@pytest.mark.parametrize("version", ["", f"{1:032x}"], ids=["newest", "named version"])
def test_a_table_with_another_name_is_reported_with_both(serve: Serve, version: str) -> None:
    first = serve("item")
    with LookupClient(first.address, LONG) as client:
        client.pull({"item": [7]}, version=version)
        first.close()
        serve("items", address=first.address)
        with pytest.raises(UnknownTableError, match="'item' is not served; did you mean 'items'"):
            client.pull({"item": [7]}, version=version)
        assert client.pull({"items": [7]}, version=version).found["items"].all()


def test_a_changed_dim_is_reported_with_both(serve: Serve) -> None:
    first = serve(dim=4)
    with LookupClient(first.address, LONG) as client:
        client.pull({"item": [7]})
        first.close()
        serve(dim=8, address=first.address)
        with pytest.raises(
            InvalidArgumentError, match=r"'item' has dim 8 now, and had 4 when this"
        ):
            client.pull({"item": [7]})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            TableConfig("items", 4),
            r"tables items \(dim 4, fp32\), but the open tables are item \(dim 4, fp32\)",
        ),
        (
            TableConfig("item", 8),
            r"tables item \(dim 8, fp32\), but the open tables are item \(dim 4, fp32\)",
        ),
    ],
    ids=["name", "dim"],
)
def test_a_version_of_other_tables_is_rejected_and_the_old_one_is_served(
    tmp_path: Any, changed: TableConfig, said: str
) -> None:
    pytest.importorskip("sparring_packed")
    from sparring_serve.tables.packed import open_packed_tables

    def publish(table: TableConfig, step: int) -> None:
        with StepContainer() as container:
            container.declare(table, StorageChoice("memory"))
            container.assign(table.name, np.arange(9), np.full((9, table.dim), step, np.float32))
            container.counters.steps = step
            container.save(f"{tmp_path}/run-{step}/step-{step}", options=SaveOptions(is_base=True))
        publish_newest(f"{tmp_path}/run-{step}", tmp_path / "served", PublisherOptions({}))

    publish(TableConfig("item", 4), 1)
    server_config = ServerConfig(poll_seconds=3600)
    config = ServingConfig(snapshots=str(tmp_path / "served"), server=server_config)
    tables = open_packed_tables(config, PLACE)
    with (
        LookupServer(tables, config, PLACE, "127.0.0.1:0") as server,
        LookupClient(server.address, LONG) as client,
    ):
        publish(changed, 2)
        assert re.search(said, server.refresher.refresh().refused)
        assert (client.pull({"item": [7]}).rows["item"] == 1).all()
        assert server.metrics.value("refreshes_total", result="refused") == 1


@pytest.fixture
def older() -> Iterator[str]:
    """A server without our methods."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_newer_client_and_an_older_server_are_both_named(serve: Serve, older: str) -> None:
    # A method that the server does not have.
    with (
        LookupClient(older, LONG) as client,
        pytest.raises(StorageIOError, match=rf"{older}: .*this client is sparring-serve \d.*older"),
    ):
        client.pull({"item": [7]})
    # A choice that it does not have.
    code, said = refused(serve(), PullRequest(of(1).tables, row_dtype=7))
    assert code == "INVALID_ARGUMENT"
    assert "row_dtype 7 is unknown to this server, sparring-serve " in said
    assert "which supports FLOAT32 0, FLOAT16 1, INT8 2" in said


def test_a_missing_or_too_long_deadline_is_reported_with_the_longest(serve: Serve) -> None:
    server = serve(max_deadline_seconds=5.0)
    for timeout, found in ((None, "none"), (60, "6")):
        code, said = refused(server, of(1), timeout=timeout)
        assert code == "INVALID_ARGUMENT"
        assert f"deadline of at most 5 s, found {found}" in said


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.7:7433", "[::]:0", "example.org:1"])
def test_plain_text_on_a_reachable_address_is_rejected_on_both_sides(address: str) -> None:
    tables = MemoryTables([TableConfig("item", 4)], {})
    host = address.rpartition(":")[0].strip("[]")
    with pytest.raises(ConfigError, match=rf"found {host}; set server.tls, or set server.ins"):
        LookupServer(tables, ServingConfig(), PLACE, address)
    with (
        LookupClient(address) as client,
        pytest.raises(ConfigError, match=rf"found {host}; set client.tls, or set client.ins"),
    ):
        client.pull({"item": [7]})


def test_plain_text_may_be_allowed(serve: Serve) -> None:
    server = serve(address="0.0.0.0:0", insecure=True)
    with LookupClient(f"127.0.0.1:{server.port}", LONG) as client:
        assert client.pull({"item": [7]}).found["item"].all()


@pytest.mark.parametrize(
    ("request_of", "said"),
    [
        (lambda: of(101), "101 ids, and the maximum is 100"),
        (lambda: of(9000), "the request has 72,0.. bytes, and the maximum is 65,536"),
        (
            lambda: PullRequest(tuple(TableIds(f"item{each}") for each in range(1025))),
            "1,025 tables, and the maximum is 1,024",
        ),
    ],
    ids=["ids", "bytes", "tables"],
)
def test_exceeded_limits_are_reported_with_the_limit(
    serve: Serve, request_of: Callable[[], PullRequest], said: str
) -> None:
    server = serve(max_ids=100, max_bytes=1 << 16)
    code, found = refused(server, request_of())
    assert code == "INVALID_ARGUMENT"
    assert re.search(said, found)
    assert server.service.admission.bytes_in_flight == 0


def test_a_too_long_answer_is_rejected_before_the_lookup(serve: Serve) -> None:
    code, said = refused(serve(dim=1000, max_bytes=1 << 16), of(17))
    assert (code, said[:70]) == (
        "INVALID_ARGUMENT",
        "the reply would have 68,017 bytes, and the maximum is 65,536; send few",
    )


def test_messages_over_the_limit_of_all_servers_are_rejected_by_grpc(serve: Serve) -> None:
    # A third-party channel: ours sends no such message.
    with grpc.insecure_channel(
        serve().address, options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        call = channel.unary_unary(f"/{SERVICE}/Pull")
        with pytest.raises(grpc.RpcError) as caught:
            call(bytes((64 << 20) + 1), timeout=9)
    assert caught.value.code().name == "RESOURCE_EXHAUSTED"
    assert "67108865 vs. 67108864" in caught.value.details()
