"""`RawConnection`: sends HTTP/2 frames that no client library sends, for calls that stop halfway."""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum

from sparring_serve.config import split_address

__all__ = ["Frame", "FrameKind", "RawConnection", "framed_message"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_HEADER_TABLE_SIZE = 1
_CANCEL = 8


class FrameKind(IntEnum):
    """Types of frames (RFC 9113, section 6)."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame from the server."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def settings(self) -> dict[int, int]:
        """Number of a setting → its value, for a SETTINGS frame."""
        return dict(struct.iter_unpack(">HI", self.payload))


class RawConnection:
    """A plain-text connection to a gRPC server.

    Args:
        address: ``host:port``.
        acks_pings: Whether to acknowledge pings of the server.
    """

    def __init__(self, address: str, *, acks_pings: bool = True) -> None:
        self.acks_pings = acks_pings
        self._socket = socket.create_connection(split_address(address), timeout=20)
        self._received = b""
        self._next_stream = 1
        self._statuses: dict[int, int | None] = {}
        # Without a header table, the server sends headers as literals.
        settings = struct.pack(">HI", _HEADER_TABLE_SIZE, 0)
        self._socket.sendall(_PREFACE + _framed(FrameKind.SETTINGS, 0, 0, settings))

    def begin(
        self,
        path: str,
        *,
        timeout: str = "",
        token: str = "",
        request_id: bytes = b"",
        is_last: bool = False,
    ) -> int:
        """Sends the headers of a call and returns its stream.

        Args:
            path: Path of the method.
            timeout: Deadline in the format of gRPC, for example ``500m`` for half a second; empty
                for no deadline.
            token: Token of the caller; empty for none.
            request_id: Request id for the audit log; empty for none.
            is_last: Whether nothing follows, not even a message.
        """
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
            **({"grpc-timeout": timeout} if timeout else {}),
            **({"authorization": f"Bearer {token}"} if token else {}),
        }
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        if request_id:
            pairs.append((b"x-request-id", request_id))
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in pairs)
        stream = self._next_stream
        self._next_stream += 2
        self.send_frame(
            FrameKind.HEADERS, _END_HEADERS | (_END_STREAM if is_last else 0), stream, block
        )
        return stream

    def send(self, stream: int, content: bytes, *, is_last: bool = False) -> None:
        """Sends part of the message of a call."""
        self.send_frame(FrameKind.DATA, _END_STREAM if is_last else 0, stream, content)

    def cancel(self, stream: int) -> None:
        """Cancels a call."""
        self.send_frame(FrameKind.RST_STREAM, 0, stream, struct.pack(">I", _CANCEL))

    def send_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Sends a frame."""
        self._socket.sendall(_framed(kind, flags, stream, payload))

    def frames(self, seconds: float) -> Iterator[Frame]:
        """Yields frames of the server as they arrive, until the time is over or the connection is
        closed."""
        end = time.monotonic() + seconds
        while True:
            while len(self._received) >= 9:
                size = int.from_bytes(self._received[:3], "big")
                if len(self._received) < 9 + size:
                    break
                kind, flags, stream = struct.unpack_from(">BBI", self._received, 3)
                frame = Frame(kind, flags, stream, self._received[9 : 9 + size])
                self._received = self._received[9 + size :]
                self._answer(frame)
                yield frame
            left = end - time.monotonic()
            if left <= 0:
                return
            self._socket.settimeout(left)
            try:
                received = self._socket.recv(65536)
            except TimeoutError:
                return
            except ConnectionError:
                received = b""
            if not received:
                return
            self._received += received

    def status(self, stream: int, seconds: float) -> int | None:
        """Waits for the status of a call; returns None if it ended without one or did not end in
        time."""
        for _ in self.frames(seconds if stream not in self._statuses else 0):
            if stream in self._statuses:
                break
        return self._statuses.get(stream)

    def is_closed(self, seconds: float) -> bool:
        """Returns whether the server closes the connection within the given time."""
        end = time.monotonic() + seconds
        for _ in self.frames(seconds):
            pass
        return time.monotonic() < end

    def close(self) -> None:
        """Closes the socket without a GOAWAY frame."""
        self._socket.close()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, frame: Frame) -> None:
        is_ack = frame.flags & _ACK
        if frame.kind == FrameKind.HEADERS:
            found = re.search(rb"grpc-status.(\d+)", frame.payload, re.DOTALL)
            if found is not None:
                self._statuses[frame.stream] = int(found[1])
        if frame.kind == FrameKind.RST_STREAM:
            self._statuses.setdefault(frame.stream, None)
        with suppress(ConnectionError):  # a closed connection may have buffered frames
            if frame.kind == FrameKind.SETTINGS and not is_ack:
                self.send_frame(FrameKind.SETTINGS, _ACK, 0, b"")
            if frame.kind == FrameKind.PING and not is_ack and self.acks_pings:
                self.send_frame(FrameKind.PING, _ACK, 0, frame.payload)


def framed_message(content: bytes) -> bytes:
    """Frames a message like gRPC: uncompressed, preceded by its length."""
    return struct.pack(">BI", 0, len(content)) + content


def _framed(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _text(content: bytes) -> bytes:
    """Encodes an HPACK string literal without Huffman coding."""
    return (bytes([len(content)]) if len(content) < 127 else _long_size(len(content))) + content


def _long_size(size: int) -> bytes:
    found, left = bytearray([127]), size - 127
    while left >= 128:
        found.append(left % 128 + 128)
        left //= 128
    found.append(left)
    return bytes(found)
