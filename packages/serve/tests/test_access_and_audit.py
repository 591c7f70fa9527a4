"""Permissions to change tables, on servers with and without tokens, and the audit log."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sparring_serve import (
    AccessError,
    ClientConfig,
    LookupServer,
    ParameterClient,
)
from sparring_serve.security import check_local
from sparring_serve.status import Status, StatusError
from sparring_serve.testing import RawConnection, framed_message
from sparring_serve.testing.front_ends import call
from sparring_serve.testing.memory_servers import open_learning_server
from sparring_serve.wire.messages import (
    SERVICE,
    DescribeRequest,
    PartRequest,
    PullRequest,
    PushRequest,
    SnapshotRequest,
    TableIds,
)

from .conftest import Serve

PULL, PUSH, ADMIN = "p" * 16, "g" * 16, "a" * 16
CHANGES = ("Push", "Flush", "Save", "Load", "SavePart", "LoadPart", "Refresh")

ServeLearning = Callable[..., LookupServer]


@pytest.fixture
def serve_learning(tmp_path: Path, closing: ExitStack) -> ServeLearning:
    def start(address: str = "127.0.0.1:0", *, tokens: str = "", **server: Any) -> LookupServer:
        if tokens:
            server["token_file"] = tmp_path / "tokens"
            server["token_file"].write_text(tokens)
        return closing.enter_context(open_learning_server(tmp_path, address=address, server=server))

    return start


def bearer(token: str, **more: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"), *more.items())


@pytest.mark.parametrize(
    ("peer", "is_local"),
    [
        ("ipv4:127.0.0.1:5000", True),
        ("ipv4:127.9.9.9:5000", True),
        ("ipv6:[::1]:5000", True),
        ("ipv6:%5B::1%5D:5000", True),
        ("ipv6:[::ffff:127.0.0.1]:5000", True),
        ("ipv6:%5B::ffff:127.0.0.1%5D:5000", True),
        ("unix:/tmp/socket", True),
        ("unix:", True),
        ("ipv4:10.0.0.7:5000", False),
        ("ipv4:128.127.0.1:5000", False),
        ("ipv4:1127.0.0.1:5000", False),
        ("ipv6:[::12]:5000", False),
        ("ipv6:[::ffff:10.0.0.7]:5000", False),
        ("ipv6:%5Bfe80::1%5D:5000", False),
        ("vsock:1:2", False),
        ("127.0.0.1:5000", False),
        ("", False),
    ],
)
def test_loopback_addresses_are_local_and_no_others(peer: str, is_local: bool) -> None:
    if is_local:
        check_local(peer, "push")
        return
    with pytest.raises(StatusError, match=r"needs the role push .*server\.token_file") as caught:
        check_local(peer, "push")
    assert caught.value.status == Status.PERMISSION_DENIED


def own_address() -> str:
    """Returns an address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            found: str = probe.getsockname()[0]
        except OSError:
            found = ""
    if not found or found.startswith("127."):
        pytest.skip("this machine has no address besides loopback")
    return found


def test_without_tokens_other_machines_may_only_look_up(
    serve_learning: ServeLearning, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve_learning("0.0.0.0:0", insecure=True)
    assert "has no server.token_file, so it accepts pushes" in caplog.text
    foreign = f"{own_address()}:{server.port}"
    for method in CHANGES:
        code, message, _, _ = call(foreign, f"{SERVICE}/{method}")
        assert code == "PERMISSION_DENIED", method
        assert "server.token_file" in message
    assert server.metrics.value("rejected_total", reason="no_tokens") == len(CHANGES)
    pull = PullRequest((TableIds("item", bytes(8)),))
    assert call(foreign, f"{SERVICE}/Pull", pull)[0] == "OK"
    assert call(foreign, f"{SERVICE}/Describe", DescribeRequest())[0] == "OK"
    # All calls from this machine are accepted.
    assert (
        call(f"127.0.0.1:{server.port}", f"{SERVICE}/Push", PushRequest(client="a", sequence=1))[0]
        == "OK"
    )
    config = ClientConfig(insecure=True)
    with (
        ParameterClient(foreign, config) as client,
        pytest.raises(AccessError, match=r"server\.token_file"),
    ):
        client.push({"item": ([1], [[1.0] * 4])})


def test_loopback_is_recognized_on_a_socket_of_both_protocols(
    serve_learning: ServeLearning,
) -> None:
    try:
        server = serve_learning("[::]:0", insecure=True)
    except Exception as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    for host in ("127.0.0.1", "[::1]"):
        request = PushRequest(client="a", sequence=1)
        assert call(f"{host}:{server.port}", f"{SERVICE}/Push", request)[0] == "OK", host


def test_with_tokens_the_role_decides(serve_learning: ServeLearning) -> None:
    server = serve_learning(
        "0.0.0.0:0", insecure=True, tokens=f"pull {PULL}\npush {PUSH}\nadmin {ADMIN}"
    )
    foreign = f"{own_address()}:{server.port}"
    push = PushRequest(client="a", sequence=1)
    assert call(foreign, f"{SERVICE}/Push", push, metadata=bearer(PUSH))[0] == "OK"
    assert call(foreign, f"{SERVICE}/Save", metadata=bearer(PUSH))[0] == "PERMISSION_DENIED"
    assert call(foreign, f"{SERVICE}/Save", metadata=bearer(ADMIN))[0] == "OK"
    # Loopback addresses need a token, too.
    assert call(server.address.replace("0.0.0.0", "127.0.0.1"), f"{SERVICE}/Push", push)[0] == (
        "UNAUTHENTICATED"
    )


def test_a_server_with_tokens_or_on_loopback_does_not_warn(
    serve_learning: ServeLearning, caplog: pytest.LogCaptureFixture
) -> None:
    serve_learning().close()
    serve_learning("0.0.0.0:0", insecure=True, tokens=f"pull {PULL}")
    assert "token_file" not in caplog.text


@pytest.fixture
def audit(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines of the audit log since the last call."""
    caplog.set_level(logging.INFO, "sparring_serve.audit")

    def read() -> list[str]:
        lines = [each.getMessage() for each in caplog.records if each.name.endswith(".audit")]
        caplog.clear()
        return lines

    return read


def test_saves_loads_and_refreshes_are_audited_also_if_they_are_rejected(
    serve_learning: ServeLearning, audit: Callable[[], list[str]], tmp_path: Path
) -> None:
    server = serve_learning(tokens=f"# roles\npull {PULL}\nadmin {ADMIN}")
    code, _, metadata, _ = call(
        server.address, f"{SERVICE}/Save", SnapshotRequest("a"), metadata=bearer(ADMIN)
    )
    [line] = audit()
    assert code == "OK"
    assert re.fullmatch(
        rf"Save '{tmp_path}/saved/a' by ipv4:127\.0\.0\.1:\d+, admin token of line 3: done after "
        rf"\d\.\d{{3}} s, request id '{metadata['x-request-id']}'",
        line,
    )
    # A save without a name is logged with the one that it got.
    call(server.address, f"{SERVICE}/Save", metadata=bearer(ADMIN, **{"x-request-id": "mine-7"}))
    [line] = audit()
    assert line.startswith(f"Save '{tmp_path}/saved/step-000000000000' by ")
    assert line.endswith("request id 'mine-7'")
    call(server.address, f"{SERVICE}/Load", SnapshotRequest("b"), metadata=bearer(ADMIN))
    assert re.match(r"Load 'b' by .*: FAILED_PRECONDITION after ", audit()[0])
    call(server.address, f"{SERVICE}/Load", SnapshotRequest("b"), metadata=bearer(PULL))
    assert re.match(r"Load by ipv4:\S+: PERMISSION_DENIED after ", audit()[0])
    call(server.address, f"{SERVICE}/Refresh", timeout=5)
    assert re.match(r"Refresh by ipv4:\S+: UNAUTHENTICATED after ", audit()[0])
    call(server.address, f"{SERVICE}/Save", b"\x0a", metadata=bearer(ADMIN))
    assert re.match(r"Save 'a damaged request' by .*: INVALID_ARGUMENT after ", audit()[0])
    call(server.address, f"{SERVICE}/Save", timeout=None, metadata=bearer(ADMIN))
    assert ": INVALID_ARGUMENT after " in audit()[0]


def test_a_request_id_and_a_name_cannot_forge_a_line(
    serve_learning: ServeLearning, audit: Callable[[], list[str]]
) -> None:
    server = serve_learning()
    name = "a\nSave 'b' by nobody: done"
    call(
        server.address,
        f"{SERVICE}/Load",
        SnapshotRequest(name),
        metadata=(("x-request-id", "i" * 999),),
    )
    [line] = audit()
    assert "\n" not in line
    assert line.endswith(f"request id '{'i' * 64}'")


def test_parts_of_other_shards_are_audited_and_lookups_are_not(
    serve_learning: ServeLearning, audit: Callable[[], list[str]]
) -> None:
    server = serve_learning()
    part = PartRequest("a", token="b" * 32, step=3, shard=0, num_shards=1)
    call(server.address, f"{SERVICE}/SavePart", PartRequest(asks=True, shard=0, num_shards=1))
    call(server.address, f"{SERVICE}/Push", PushRequest(client="a", sequence=1))
    call(server.address, f"{SERVICE}/Describe")
    assert audit() == []
    call(server.address, f"{SERVICE}/SavePart", part)
    assert re.match(r"SavePart 'a' by ipv4:\S+: ", audit()[0])


def test_refreshes_are_allowed_and_audited_equally_by_both_servers(
    serve: Serve, tmp_path: Path
) -> None:
    own = own_address()
    server = serve(address="0.0.0.0:0", insecure=True)
    port = server.address.rpartition(":")[2]
    for host, expected in ((own, "PERMISSION_DENIED"), ("127.0.0.1", "OK")):
        assert call(f"{host}:{port}", f"{SERVICE}/Refresh")[0] == expected
        assert call(f"{host}:{port}", f"{SERVICE}/Describe")[0] == "OK"
    tokens = tmp_path / "tokens"
    tokens.write_text(f"# roles\npull {PULL}\nadmin {ADMIN}")
    server = serve(token_file=tokens)
    code, _, metadata, _ = call(server.address, f"{SERVICE}/Refresh", metadata=bearer(ADMIN))
    given = bearer(PULL, **{"x-request-id": "i" * 999})
    assert (code, call(server.address, f"{SERVICE}/Refresh", metadata=given)[0]) == (
        "OK",
        "PERMISSION_DENIED",
    )
    lines = [each for each in server.lines if "Refresh by" in each]
    assert re.search(
        r"Refresh by ipv4:127\.0\.0\.1:\d+, admin token of line 3: done after \d\.\d{3} s, request id "
        rf"'{metadata['x-request-id']}'$",
        lines[0],
    )
    assert re.search(r"Refresh by ipv4:\S+: PERMISSION_DENIED after ", lines[1])
    assert lines[1].rstrip().endswith(f"request id '{'i' * 64}'")


@pytest.mark.parametrize("request_id", [b"a\x01b", b"\xc3\xa9", b"\xff"])
def test_request_ids_that_grpc_cannot_send_are_replaced(serve: Serve, request_id: bytes) -> None:
    server = serve()
    with RawConnection(server.address) as connection:
        stream = connection.begin(f"/{SERVICE}/Refresh", timeout="9S", request_id=request_id)
        connection.send(stream, framed_message(b""), is_last=True)
        assert connection.status(stream, 10) == 0
    assert call(server.address, f"{SERVICE}/Describe")[0] == "OK"
