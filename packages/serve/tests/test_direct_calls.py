"""Small calls without grpcio return what grpcio returns, and leave the rest of HTTP/2 to it."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from sparring.contracts import TableConfig, partition
from sparring_serve import (
    ClientConfig,
    LookupClient,
    LookupServer,
    ServerConfig,
    ServingConfig,
    ShardPosition,
    ShardReplicas,
)
from sparring_serve.client.direct_calls import DirectCalls
from sparring_serve.client.grpc_transport import GrpcTransport
from sparring_serve.client.transport import Outcome, Send
from sparring_serve.testing import MemoryTables
from sparring_serve.wire.fields import decode, encode
from sparring_serve.wire.messages import PullReply, PullRequest, TableIds

from .proxies import Proxy

ITEM = TableConfig("item", 4, seed=3)


@pytest.fixture(scope="module")
def server() -> Iterator[LookupServer]:
    tables = MemoryTables([ITEM], {"item": {key: [1, key, -key, 0.5] for key in range(100)}})
    shards = ShardReplicas((("127.0.0.1:1",), ("127.0.0.1:2",)))
    with LookupServer(
        tables, ServingConfig(server=ServerConfig()), ShardPosition(shards, 0), "127.0.0.1:0"
    ) as made:
        yield made


def pull(address: str, ids: Sequence[int], table: str = "item", method: str = "Pull") -> Send:
    request = encode(PullRequest((TableIds(table, np.array(ids, np.int64).tobytes()),)))
    return Send(address, method, request, 5.0)


def own_ids(count: int) -> list[int]:
    """Returns ids of the first of two shards."""
    keys = np.arange(4 * count)
    return keys[partition(keys) < 2048][:count].tolist()


@pytest.mark.parametrize(
    "asked",
    [
        {"ids": own_ids(7)},
        {"ids": own_ids(1500)},
        {"ids": own_ids(1), "table": "ïtem%"},
        {"ids": list(range(100))},  # of both shards: the error contains a shard map
        {"ids": [], "method": "Push"},
    ],
    ids=["rows", "many rows", "unknown table", "foreign keys", "unknown method"],
)
def test_outcomes_equal_those_of_grpcio(server: LookupServer, asked: dict[str, Any]) -> None:
    transport = GrpcTransport(ClientConfig())
    try:
        [first] = transport.exchange([pull(server.address, own_ids(1))])
        assert first.status == "OK"
        expected = transport._ended(
            send := pull(server.address, **asked),
            lambda: transport._connections.call(send)(send.request, 5.0),
        )
        direct = transport._direct.call(send, None)
        if expected.shard_map:
            assert direct is None
        else:
            assert direct is not None
        [found] = transport.exchange([send])
        without_age = [each and _without_age(each) for each in (expected, found, direct or found)]
        assert without_age[0] == without_age[1] == without_age[2]
    finally:
        transport.close()


def _without_age(outcome: Outcome) -> Outcome:
    if outcome.answer is None:
        return outcome
    reply = decode(PullReply, outcome.answer)
    return Outcome(bytes(reply.tables[0].rows) + bytes(reply.tables[0].found))


def test_small_calls_share_a_connection_even_if_their_requests_exceed_its_window(
    server: LookupServer,
) -> None:
    proxy = Proxy(server.port)
    transport = GrpcTransport(ClientConfig())
    try:
        for _ in range(40):  # 40 times 8 KB; the window of a new connection has 64 KB
            [outcome] = transport.exchange([pull(proxy.address, own_ids(1000))])
            assert outcome.status == "OK"
        assert proxy.num_connections == 2  # the first call is made by grpcio
    finally:
        transport.close()
        proxy.close()


def test_a_forked_process_makes_a_connection_of_its_own(
    server: LookupServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = DirectCalls(is_plain_text=True)
    direct.note(server.address, is_success=True)
    made = []
    for _ in range(2):
        assert direct.call(pull(server.address, own_ids(1)), None).status == "OK"  # type: ignore[union-attr]
        made.append(direct._idle[server.address][0])
        forked = os.getpid() + 1
        monkeypatch.setattr(os, "getpid", lambda forked=forked: forked)
    assert made[0] is not made[1]
    direct.close()


# -- replies of a scripted server -----------------------------------------------------------------


def frame(kind: int, flags: int, content: bytes, stream: int = 1) -> bytes:
    return struct.pack(">IBI", len(content) << 8 | kind, flags, stream) + content


def header(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


OK = b"\x88" + header(b"content-type", b"application/grpc")
STATUS_0 = header(b"grpc-status", b"0")
# The highest bit of the length of a value marks the Huffman code, here of "0".
HUFFMAN = b"\0\x0bgrpc-status\x81\x07"
SETTINGS = frame(4, 0, b"", 0) + frame(6, 0, bytes(8), 0) + frame(8, 0, b"\0\0\0\7", 0)
MESSAGE = b"\0\0\0\0\3abc"
HEAD, TAIL = frame(1, 4, OK), frame(1, 5, STATUS_0)
WHOLE = HEAD + frame(0, 0, MESSAGE) + TAIL


class Script:
    """A server that answers each call with given bytes.

    Args:
        reply: Bytes after a call.
        piece: Number of bytes that are sent at once.
        closes: Whether it then closes the connection.
    """

    def __init__(self, reply: bytes, piece: int = 1 << 20, closes: bool = False) -> None:
        self._reply, self._piece, self._closes = reply, piece, closes
        self.num_connections = 0
        self.received = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # The client may close the connection before it has read everything.
            with connection, suppress(ConnectionError):
                while content := connection.recv(1 << 16):
                    self.received += content
                    if b"application/grpc" not in content:
                        continue
                    for at in range(0, len(self._reply), self._piece):
                        connection.sendall(self._reply[at : at + self._piece])
                    if self._closes:
                        break

    def close(self) -> None:
        # Closing alone does not end accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


GRPCIO = None
ABC = Outcome(b"abc")
CASES: dict[str, tuple[bytes, Outcome | None]] = {
    "whole": (SETTINGS + WHOLE, ABC),
    "two frames of data": (HEAD + frame(0, 0, MESSAGE[:6]) + frame(0, 0, MESSAGE[6:]) + TAIL, ABC),
    "table of headers of size 0": (frame(1, 4, b"\x20" + OK) + frame(0, 0, MESSAGE) + TAIL, ABC),
    "frames of other streams": (frame(0, 0, b"x", 9) + frame(3, 0, bytes(4), 9) + WHOLE, ABC),
    "drains after this call": (frame(7, 0, b"\0\0\0\1" + bytes(4), 0) + WHOLE, ABC),
    "error": (
        frame(1, 5, OK + header(b"grpc-status", b"8") + header(b"grpc-message", b"100%25 busy")),
        Outcome(None, "RESOURCE_EXHAUSTED", "100% busy"),
    ),
    "status in Huffman code": (HEAD + frame(0, 0, MESSAGE) + frame(1, 5, HUFFMAN), GRPCIO),
    "header of a table": (frame(1, 4, b"\xbe") + frame(0, 0, MESSAGE) + TAIL, GRPCIO),
    "continued headers": (frame(1, 0, OK), GRPCIO),
    "padding": (HEAD + frame(0, 8, b"\0" + MESSAGE) + TAIL, GRPCIO),
    "compressed": (HEAD + frame(0, 0, b"\1" + MESSAGE[1:]) + TAIL, GRPCIO),
    "a small window": (frame(4, 0, struct.pack(">HI", 4, 100), 0) + WHOLE, GRPCIO),
    "503 of a proxy": (frame(1, 5, b"\x8d"), GRPCIO),
    "goes away before this call": (frame(7, 0, bytes(8), 0), GRPCIO),
    "refused": (frame(3, 0, struct.pack(">I", 7)), GRPCIO),
    "reset": (
        frame(3, 0, struct.pack(">I", 2)),
        Outcome(None, "UNAVAILABLE", "the connection was lost: the server ended the call with the "
                "HTTP/2 error 2"),
    ),
    "wrong length": (
        HEAD + frame(0, 0, MESSAGE + b"d") + TAIL,
        Outcome(None, "UNAVAILABLE", "the connection was lost: the length of the reply is wrong"),
    ),
    "incomplete headers": (
        frame(1, 5, OK + b"\0\x05gr"),
        Outcome(None, "UNAVAILABLE", "the connection was lost: a block of headers is incomplete"),
    ),
    "silence": (SETTINGS, Outcome(None, "DEADLINE_EXCEEDED", "Deadline Exceeded")),
}  # fmt: skip


@pytest.mark.parametrize("piece", [1 << 20, 1], ids=["at once", "byte by byte"])
@pytest.mark.parametrize("case", CASES)
def test_a_reply_is_decoded_or_left_to_grpcio(case: str, piece: int) -> None:
    reply, expected = CASES[case]
    script = Script(reply, piece)
    direct = DirectCalls(is_plain_text=True)
    direct.note(script.address, is_success=True)
    try:
        send = Send(script.address, "Pull", b"asked", 0.1 if case == "silence" else 5.0)
        assert direct.call(send, (("authorization", "Bearer " + "x" * 300),)) == expected
        assert b"x" * 300 in script.received
        assert script.num_connections == 1
    finally:
        direct.close()
        script.close()


def test_a_server_whose_headers_cannot_be_decoded_is_left_to_grpcio_forever() -> None:
    script = Script(CASES["status in Huffman code"][0])
    direct = DirectCalls(is_plain_text=True)
    try:
        for _ in range(3):
            direct.note(script.address, is_success=True)
            assert direct.call(Send(script.address, "Pull", b"", 5.0), None) is None
        assert script.num_connections == 1
    finally:
        direct.close()
        script.close()


def test_pings_and_settings_are_acknowledged() -> None:
    script = Script(SETTINGS)
    direct = DirectCalls(is_plain_text=True)
    direct.note(script.address, is_success=True)
    direct.call(Send(script.address, "Pull", b"", 0.1), None)
    direct.close()
    script.close()
    assert frame(4, 1, b"", 0) + frame(6, 1, bytes(8), 0) in script.received


def test_a_connection_that_the_server_closed_is_replaced_and_a_failure_leaves_calls_to_grpcio() -> (
    None
):
    script = Script(WHOLE, closes=True)
    direct = DirectCalls(is_plain_text=True)
    send = Send(script.address, "Pull", b"", 5.0)
    assert direct.call(send, None) is None  # no call has succeeded yet
    direct.note(script.address, is_success=True)
    for _ in range(3):
        assert direct.call(send, None) == ABC
        direct._idle[script.address][0]._socket.settimeout(5)
        assert not direct._idle[script.address][0]._socket.recv(1, socket.MSG_PEEK)  # closed
    assert script.num_connections == 3
    script.close()
    assert direct.call(send, None) is None
    assert script.address not in direct._idle
    direct.close()


def test_an_idle_connection_does_not_delay_the_end_of_a_server() -> None:
    tables = MemoryTables([ITEM], {"item": {7: [1, 2, 3, 4]}})
    position = ShardPosition(ShardReplicas((("127.0.0.1:1",),)))
    server = LookupServer(tables, ServingConfig(), position, "127.0.0.1:0")
    with LookupClient(server.address) as client:
        for _ in range(2):
            assert client.pull({"item": [7]}).found["item"].all()
        begin = time.monotonic()
        server.close()
        assert time.monotonic() - begin < 5


def test_calls_succeed_in_a_process_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(WHOLE)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    direct = DirectCalls(is_plain_text=True)
    direct.note(script.address, is_success=True)
    assert direct.call(Send(script.address, "Pull", b"", 5.0), None) == ABC
    direct.close()
    script.close()


def test_only_small_calls_in_plain_text_without_a_proxy_are_direct(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script(WHOLE)
    send = Send(script.address, "Pull", b"", 5.0)
    for direct, sent in (
        (DirectCalls(is_plain_text=False), send),
        (DirectCalls(is_plain_text=True), Send(script.address, "Pull", bytes(1 << 14), 5.0)),
        (DirectCalls(is_plain_text=True), Send(script.address, "Pull", b"", 5.0, waits=True)),
    ):
        direct.note(script.address, is_success=True)
        assert direct.call(sent, None) is None
    monkeypatch.setenv("http_proxy", "http://proxy:80")
    direct = DirectCalls(is_plain_text=True)
    direct.note(script.address, is_success=True)
    assert direct.call(send, None) is None
    assert script.num_connections == 0
    script.close()
