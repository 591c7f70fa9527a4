"""`server.health_port`: health in plain text next to a port with TLS, for probes of Kubernetes."""

from __future__ import annotations

import shutil
from pathlib import Path

import grpc
import pytest

from sparring import TableConfig
from sparring.errors import StorageIOError
from sparring_serve import (
    LookupServer,
    ServerConfig,
    ServingConfig,
    ShardPosition,
    ShardReplicas,
    TlsFiles,
)
from sparring_serve.testing import MemoryTables
from sparring_serve.wire.fields import decode, encode
from sparring_serve.wire.messages import SERVICE
from sparring_serve.wire.open_inference import (
    HEALTH,
    INFERENCE,
    HealthReply,
    HealthRequest,
    ServingStatus,
)

from .test_server import make_certificate


@pytest.fixture
def server(tmp_path: Path):
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    certificate = make_certificate(tmp_path, "server")
    tls = TlsFiles(certificate_file=certificate, key_file=certificate.with_suffix(".key"))
    config = ServingConfig(server=ServerConfig(tls=tls, health_port=0))
    position = ShardPosition(ShardReplicas((("127.0.0.1:7433",),)))
    tables = MemoryTables([TableConfig("item", 4)], {"item": {7: [1, 2, 3, 4]}})
    with LookupServer(tables, config, position, "127.0.0.1:0") as started:
        yield started


def call(port: int, path: str, content: bytes = b"") -> bytes:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer: bytes = channel.unary_unary(path)(content, timeout=5)
        return answer


def status(port: int, service: str) -> ServingStatus:
    answer = call(port, f"/{HEALTH}/Check", encode(HealthRequest(service)))
    return ServingStatus(decode(HealthReply, answer).status)


def test_the_health_port_answers_in_plain_text_while_the_other_port_needs_tls(
    server: LookupServer,
) -> None:
    assert server.health_port is not None
    for service in ("", SERVICE, "liveness"):
        assert status(server.health_port.port, service) == ServingStatus.SERVING
    with pytest.raises(grpc.RpcError) as info:
        status(server.port, "")
    assert info.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_server_that_is_not_ready_is_alive(server: LookupServer) -> None:
    assert server.health_port is not None
    server.service.is_draining = True
    assert status(server.health_port.port, "") == ServingStatus.NOT_SERVING
    assert status(server.health_port.port, "liveness") == ServingStatus.SERVING


@pytest.mark.parametrize(
    "path", [f"/{SERVICE}/Pull", f"/{SERVICE}/Describe", f"/{INFERENCE}/ModelInfer"]
)
def test_the_health_port_answers_no_other_call(server: LookupServer, path: str) -> None:
    assert server.health_port is not None
    with pytest.raises(grpc.RpcError) as info:
        call(server.health_port.port, path)
    assert info.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_health_port_that_is_taken_is_named(server: LookupServer) -> None:
    assert server.health_port is not None
    config = ServingConfig(server=ServerConfig(health_port=server.health_port.port))
    tables = MemoryTables([TableConfig("item", 4)], {})
    with pytest.raises(StorageIOError, match=r"set server\.health_port"):
        LookupServer(tables, config, server.service.position, "127.0.0.1:0")
