"""`server.health_port`: health in plain text next to a port with TLS, for probes of Kubernetes."""

from __future__ import annotations

import shutil
from pathlib import Path

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
from sparring_serve.testing.front_ends import call
from sparring_serve.wire.messages import SERVICE
from sparring_serve.wire.open_inference import HEALTH, INFERENCE, ServingStatus
from sparring_testing.processes.certificates import make_certificate

from .conftest import Serve
from .test_server import status_of

PLACE = ShardPosition(ShardReplicas((("127.0.0.1:7433",),)))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_the_health_port_answers_probes_in_plain_text_and_nothing_else(
    serve: Serve, tmp_path: Path
) -> None:
    certificate = make_certificate(tmp_path, "server")
    tls = TlsFiles(certificate_file=certificate, key_file=certificate.with_suffix(".key"))
    server = serve(tls=tls)
    for service in ("", SERVICE, "liveness"):
        assert status_of(server.health_address, service) == ServingStatus.SERVING
    assert call(server.address, f"{HEALTH}/Check", timeout=1)[0] == "UNAVAILABLE"
    for path in (f"{SERVICE}/Pull", f"{SERVICE}/Describe", f"{INFERENCE}/ModelInfer"):
        assert call(server.health_address, path)[0] == "UNIMPLEMENTED"


def test_a_server_that_is_not_ready_is_alive() -> None:
    tables = MemoryTables([TableConfig("item", 4)], {})
    config = ServingConfig(server=ServerConfig(health_port=0))
    with LookupServer(tables, config, PLACE, "127.0.0.1:0") as server:
        assert server.health_port is not None
        server.service.is_draining = True
        address = f"127.0.0.1:{server.health_port.port}"
        assert status_of(address) == ServingStatus.NOT_SERVING
        assert status_of(address, "liveness") == ServingStatus.SERVING


def test_a_health_port_that_is_taken_is_named(serve: Serve) -> None:
    port = int(serve().health_address.rpartition(":")[2])
    with pytest.raises((StorageIOError, AssertionError), match=r"set server\.health_port"):
        serve(health_port=port)
