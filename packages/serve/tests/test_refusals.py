"""Mismatches are rejected, and the message names both sides: calls over a real port."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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
    ServingConfig,
    ShardPosition,
    ShardReplicas,
)
from sparring_serve.publishing.publisher import PublisherOptions, publish_newest
from sparring_serve.testing import MemoryTables
from sparring_serve.testing.front_ends import KEYS, Folder, FrontEnd, call, pull, read_metrics
from sparring_serve.wire.messages import SERVICE, PullRequest, TableIds

from .conftest import Serve

PLACE = ShardPosition(ShardReplicas((("127.0.0.1:1",),)))
LONG = ClientConfig(deadline_seconds=20)

ServeTable = Callable[..., FrontEnd]


@pytest.fixture
def serve_table(kind: str, open_servers: Serve, tmp_path: Path) -> ServeTable:
    """Starts a server with one table, possibly on the port of a stopped server."""

    def start(table: str = "item", dim: int = 4, **options: Any) -> FrontEnd:
        folder = Folder(tmp_path / f"{table}-{dim}")
        folder.publish(1, tables=[TableConfig(table, dim)])
        return open_servers(kind, folder, **options)

    return start


def refused(server: FrontEnd, request: PullRequest | bytes, **options: Any) -> tuple[str, str]:
    """Status and message of a call of a client of any make."""
    return call(server.address, f"{SERVICE}/Pull", request, **options)[:2]


def of(ids: int, table: str = "item") -> PullRequest:
    return PullRequest((TableIds(table, bytes(8 * ids)),))


@pytest.mark.parametrize("has_version", [False, True], ids=["newest", "named version"])
def test_a_table_with_another_name_is_reported_with_both(
    serve_table: ServeTable, has_version: bool
) -> None:
    first = serve_table("item")
    with LookupClient(first.address, LONG) as client:
        version = client.pull({"item": [7]}).versions[0].hash if has_version else ""
        client.pull({"item": [7]}, version=version)
        first.close()
        serve_table("items", address=first.address)
        with pytest.raises(UnknownTableError, match="'item' is not served; did you mean 'items'"):
            client.pull({"item": [7]}, version=version)
        assert client.pull({"items": [7]}).found["items"].all()


def test_a_changed_dim_is_reported_with_both(serve_table: ServeTable) -> None:
    first = serve_table(dim=4)
    with LookupClient(first.address, LONG) as client:
        client.pull({"item": [7]})
        first.close()
        serve_table(dim=8, address=first.address)
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
    kind: str, open_servers: Serve, tmp_path: Path, changed: TableConfig, said: str
) -> None:
    def publish(table: TableConfig, step: int) -> None:
        with StepContainer() as container:
            container.declare(table, StorageChoice("memory"))
            container.assign(table.name, np.arange(9), np.full((9, table.dim), step, np.float32))
            container.counters.steps = step
            container.save(f"{tmp_path}/run-{step}/step-{step}", options=SaveOptions(is_base=True))
        publish_newest(f"{tmp_path}/run-{step}", tmp_path / "served", PublisherOptions({}))

    publish(TableConfig("item", 4), 1)
    server = open_servers(kind, Folder(tmp_path))
    with LookupClient(server.address, LONG) as client:
        publish(changed, 2)
        assert re.search(said, server.refresh().refused)
        assert (client.pull({"item": [7]}).rows["item"] == 1).all()
        assert read_metrics(server)['refreshes_total{result="refused"}'] == 1


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
    for timeout, found in ((None, "none"), (60, r"\d+(\.\d)? s")):
        code, said = refused(server, of(1), timeout=timeout)
        assert code == "INVALID_ARGUMENT"
        assert re.search(f"must have a deadline of at most 5 s, found {found}; set one", said)
    assert call(server.address, f"{SERVICE}/Describe", timeout=None)[0] == "OK"


def test_rows_that_are_too_old_are_rejected(serve: Serve) -> None:
    request = pull(("item", [1]), max_staleness_seconds=1e-6)
    code, message, _, _ = call(serve().address, f"{SERVICE}/Pull", request)
    assert code == "FAILED_PRECONDITION"
    assert "max_staleness_seconds is 1e-06" in message


def test_keys_of_other_shards_are_rejected_with_the_shard_map(serve: Serve) -> None:
    shards = ShardReplicas((("127.0.0.1:1",), ("127.0.0.1:2",)))
    servers = [serve(ShardPosition(shards, number)) for number in (0, 1)]
    with LookupClient([[each.address] for each in servers], LONG) as client:
        assert client.pull({"item": KEYS}).rows["item"][:, 1].tolist() == KEYS.tolist()
    code, message, metadata, _ = call(servers[0].address, f"{SERVICE}/Pull", pull(("item", KEYS)))
    assert (code, metadata["sparring-shard-map-bin"]) == ("FAILED_PRECONDITION", shards.to_bytes())
    assert "and shard 1 of 2 has the partitions 0 to 2047; use the attached shard map" in message


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
    port = server.address.rpartition(":")[2]
    with LookupClient(f"127.0.0.1:{port}", LONG) as client:
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
    assert read_metrics(server)["bytes_in_flight"] == 0


def test_a_too_long_answer_is_rejected_before_the_lookup(serve_table: ServeTable) -> None:
    code, said = refused(serve_table(dim=1000, max_bytes=1 << 16), of(17))
    assert (code, said[:70]) == (
        "INVALID_ARGUMENT",
        "the reply would have 68,017 bytes, and the maximum is 65,536; send few",
    )


def test_compressed_messages_are_rejected(serve: Serve) -> None:
    # They could have a thousand times their size in memory.
    code, said = refused(serve(), bytes(1 << 20), compression=grpc.Compression.Gzip)
    assert (code, said) == ("UNIMPLEMENTED", "Compression algorithm 'gzip' is disabled.")


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
