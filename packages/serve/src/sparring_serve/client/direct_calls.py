"""Small blocking calls in plain text over a socket, without grpcio.

grpcio needs 100 to 170 µs for a call whose reply a socket receives within 40 µs, because other threads
read its connection. A connection of this module has one call in progress at a time, and implements the
part of HTTP/2 that such a call needs. grpcio makes all other calls: over TLS or through a proxy, to
several shards at once, with large requests, and to replicas whose last call failed. It also repeats a
call if the reply uses another part of HTTP/2. https://www.rfc-editor.org/rfc/rfc9113 and rfc7541
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from contextlib import suppress
from functools import lru_cache
from urllib.parse import unquote

import grpc

from sparring_serve.client.transport import Outcome, Send
from sparring_serve.config import split_address
from sparring_serve.status import SHARD_MAP_METADATA
from sparring_serve.wire.fields import MAX_BYTES
from sparring_serve.wire.messages import SERVICE

__all__ = ["DirectCalls"]

Metadata = tuple[tuple[str, str], ...] | None

_MAX_REQUEST = (1 << 14) - 5
"""Maximum size of a request: one frame, which every server accepts."""
_MAX_IDLE_SECONDS = 0.5
"""Connections are closed after this time without calls. Nothing reads an idle connection, so a server
that ends would wait up to 20 s for a reply to its ping."""
_CONNECT_SECONDS = 1.0
_LAST_STREAM = 1 << 30

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS, _PADDED_OR_PRIORITY = 1, 1, 4, 8 | 32
_INITIAL_WINDOW, _LARGEST_WINDOW, _LARGEST_FRAME = (1 << 16) - 1, (1 << 31) - 1, (1 << 24) - 1
_REFUSED_STREAM, _SETTING_WINDOW = 7, 4
_RECEIVED_BYTES = 1 << 16
_STATUS_200, _STATIC_HEADERS = 8, 61
"""Index of ``:status 200`` in the static table of headers, and length of the table."""
# No table of headers, no pushes, and no flow control of replies.
_OUR_SETTINGS = struct.pack(">HIHIHIHI", 1, 0, 2, 0, 4, _LARGEST_WINDOW, 5, _LARGEST_FRAME)
_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_STATUS_NAMES = {str(each.value[0]).encode(): each.name for each in grpc.StatusCode}


class _NotProcessedError(Exception):
    """The server cannot be reached, or did not process the call."""


class _UnsupportedError(Exception):
    """The reply uses a part of HTTP/2 that is not implemented here."""


class DirectCalls:
    """Calls to replicas whose last call succeeded. All methods are thread-safe.

    Args:
        is_plain_text: Whether connections are in plain text; otherwise grpcio makes all calls.
    """

    def __init__(self, *, is_plain_text: bool) -> None:
        has_proxy = any(os.environ.get(each) for each in _PROXY_VARIABLES)
        self._is_enabled = is_plain_text and not has_proxy
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: dict[str, list[_Connection]] = {}
        """Connections to each address whose last call succeeded, the last used at the end."""
        self._unsupported: set[str] = set()
        self._closer: threading.Thread | None = None
        """Closes idle connections while there are any."""

    def note(self, address: str, *, is_success: bool) -> None:
        """Records the result of a call that grpcio made."""
        with self._lock:
            if not is_success:
                self._forget(address)
            elif self._is_enabled and address not in self._unsupported:
                self._idle.setdefault(address, [])

    def call(self, send: Send, metadata: Metadata) -> Outcome | None:
        """Makes one call; returns None if grpcio should make it."""
        if send.waits or len(send.request) > _MAX_REQUEST or send.address not in self._idle:
            return None
        end = time.monotonic() + send.timeout_seconds
        connection = None
        outcome = None
        try:
            connection = self._take(send.address, end)
            outcome = connection.call(send, metadata, end)
        except _NotProcessedError:
            pass
        except _UnsupportedError:
            self._unsupported.add(send.address)
        except TimeoutError:
            outcome = Outcome(None, "DEADLINE_EXCEEDED", "Deadline Exceeded")
        except OSError as error:
            outcome = Outcome(None, "UNAVAILABLE", f"the connection was lost: {error}")
        finally:
            # Also after an interrupt, whose connection is not usable.
            self._put_back(send.address, connection)
        return outcome

    def close(self) -> None:
        with self._lock:
            self._is_enabled = False
            for address in list(self._idle):
                self._forget(address)

    def _take(self, address: str, end: float) -> _Connection:
        now = time.monotonic()
        with self._lock:
            if self._process != os.getpid():
                # A forked process must not share connections with its parent.
                self._process, self._idle = os.getpid(), {each: [] for each in self._idle}
                self._closer = None
            idle = self._idle.get(address, [])
            while idle:
                connection = idle.pop()
                if not connection.has_ended():
                    return connection
                connection.close()
        return _Connection(address, end - now)

    def _put_back(self, address: str, connection: _Connection | None) -> None:
        with self._lock:
            if connection is None or not connection.is_usable:
                self._forget(address)
            idle = self._idle.get(address)
            if connection is None:
                return
            if idle is None or not connection.is_usable or connection.is_closing:
                connection.close()
                return
            connection.used = time.monotonic()
            idle.append(connection)
            if self._closer is None:
                closer = threading.Thread(target=self._close_idle, name="direct calls", daemon=True)
                # A process that ends starts no threads, and closes its connections.
                with suppress(RuntimeError):
                    closer.start()
                    self._closer = closer

    def _close_idle(self) -> None:
        while True:
            time.sleep(_MAX_IDLE_SECONDS / 2)
            with self._lock:
                oldest = time.monotonic() - _MAX_IDLE_SECONDS
                for idle in self._idle.values():
                    while idle and idle[0].used < oldest:
                        idle.pop(0).close()
                if not any(self._idle.values()):
                    self._closer = None
                    return

    def _forget(self, address: str) -> None:
        for each in self._idle.pop(address, ()):
            each.close()


class _Connection:
    """An HTTP/2 connection.

    Raises:
        _NotProcessedError: The server cannot be reached.
    """

    def __init__(self, address: str, seconds: float) -> None:
        seconds = max(1e-3, min(seconds, _CONNECT_SECONDS))
        try:
            self._socket = socket.create_connection(split_address(address), seconds)
        except OSError as error:
            raise _NotProcessedError from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._address = address
        self._received = b""
        self._unsent = (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0, _OUR_SETTINGS)
            + _frame(_WINDOW, 0, 0, struct.pack(">I", _LARGEST_WINDOW - _INITIAL_WINDOW))
        )
        """Frames to send with the next call."""
        self._headers: dict[tuple[str, Metadata], bytes] = {}
        self._stream = -1
        self._window = _INITIAL_WINDOW
        """Number of bytes of requests that the server accepts."""
        self._num_received = 0
        """Bytes of replies since the last update of the server's window."""
        self.used = 0.0
        """Time of the last call."""
        self.is_usable = False
        """Whether the last call is complete."""
        self.is_closing = False
        """Whether the server accepts no more calls."""

    def has_ended(self) -> bool:
        """Returns whether the server closed the idle connection."""
        self._socket.settimeout(0.0)
        try:
            # Frames that arrived meanwhile are read by the next call.
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self._socket.close()

    def call(self, send: Send, metadata: Metadata, end: float) -> Outcome | None:
        """Makes one call until `end` on the monotonic clock; returns None if grpcio should repeat it.

        Raises:
            TimeoutError: There is no reply.
            OSError: The connection was lost.
        """
        self.is_usable = False
        size = len(send.request) + 5
        while self._window < size:
            self._note_frame(*self._read_frame(end))
        self._window -= size
        self._stream += 2
        headers = self._header_block(send.method, metadata) + _literal(
            b"grpc-timeout", _format_timeout(send.timeout_seconds)
        )
        body = b"\0" + (size - 5).to_bytes(4, "big") + send.request
        unsent, self._unsent = self._unsent, b""
        self._socket.settimeout(_remaining(end))
        self._socket.sendall(
            unsent
            + _frame(_HEADERS, _END_HEADERS, self._stream, headers)
            + _frame(_DATA, _END_STREAM, self._stream, body)
        )
        outcome = self._read_reply(end)
        self.is_usable = True
        self.is_closing = self.is_closing or self._stream > _LAST_STREAM
        return outcome

    def _header_block(self, method: str, metadata: Metadata) -> bytes:
        block = self._headers.get((method, metadata))
        if block is None:
            # The first two bytes are `:method POST` and `:scheme http` of the static table.
            block = b"\x83\x86" + b"".join(
                _literal(name.encode(), value.encode())
                for name, value in (
                    (":path", f"/{SERVICE}/{method}"),
                    (":authority", self._address),
                    ("content-type", "application/grpc"),
                    ("te", "trailers"),
                    *(metadata or ()),
                )
            )
            self._headers = {(method, metadata): block}
        return block

    def _read_reply(self, end: float) -> Outcome | None:
        parts: list[bytes | bytearray] = []
        headers: dict[bytes, bytes | None] = {}
        num_bytes, flags = 0, 0
        while not flags & _END_STREAM:
            kind, flags, stream, content = self._read_frame(end)
            if stream != self._stream or kind not in (_DATA, _HEADERS):
                self._note_frame(kind, flags, stream, content)
                flags = 0
            elif flags & _PADDED_OR_PRIORITY:
                raise _UnsupportedError
            elif kind == _DATA:
                parts.append(content)
                num_bytes += len(content)
                if num_bytes > MAX_BYTES:
                    raise OSError(f"the reply has more than {MAX_BYTES:,} bytes")
            elif flags & _END_HEADERS:
                headers = {**headers, **_read_headers(bytes(content))}
            else:
                raise _UnsupportedError
        self._num_received += num_bytes
        if self._num_received > _LARGEST_WINDOW // 4:
            self._unsent += _frame(_WINDOW, 0, 0, struct.pack(">I", self._num_received))
            self._num_received = 0
        return _outcome(headers, b"".join(parts))

    def _read_frame(self, end: float) -> tuple[int, int, int, bytes | bytearray]:
        """Returns the type, the flags, the stream and the content of the next frame."""
        received = self._received
        while len(received) < 9:
            self._socket.settimeout(_remaining(end))
            if self._unsent:
                unsent, self._unsent = self._unsent, b""
                self._socket.sendall(unsent)
            more = self._socket.recv(_RECEIVED_BYTES)
            if not more:
                raise OSError("the server closed it")
            received += more
        length, kind, flags = int.from_bytes(received[:3], "big"), received[3], received[4]
        stream = int.from_bytes(received[5:9], "big") & _LARGEST_WINDOW
        if len(received) >= 9 + length:
            self._received = received[9 + length :]
            return kind, flags, stream, received[9 : 9 + length]
        content = bytearray(length)
        at = len(received) - 9
        with memoryview(content) as view:
            view[:at] = received[9:]
            while at < length:
                self._socket.settimeout(_remaining(end))
                count = self._socket.recv_into(view[at:])
                if not count:
                    raise OSError("the server closed it")
                at += count
        self._received = b""
        return kind, flags, stream, content

    def _note_frame(self, kind: int, flags: int, stream: int, content: bytes | bytearray) -> None:
        """Processes a frame that is no part of a reply."""
        if kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", content):
                if name == _SETTING_WINDOW and value <= _MAX_REQUEST:
                    raise _UnsupportedError
            self._unsent += _frame(_SETTINGS, _ACK, 0, b"")
        elif kind == _PING and not flags & _ACK:
            self._unsent += _frame(_PING, _ACK, 0, bytes(content))
        elif kind == _WINDOW and stream == 0:
            self._window += int.from_bytes(content, "big")
        elif kind == _GOAWAY:
            self.is_closing = True
            if int.from_bytes(content[:4], "big") & _LARGEST_WINDOW < self._stream:
                raise _NotProcessedError
        elif kind == _RESET and stream == self._stream:
            code = int.from_bytes(content, "big")
            if code == _REFUSED_STREAM:
                raise _NotProcessedError
            raise OSError(f"the server ended the call with the HTTP/2 error {code}")


def _remaining(end: float) -> float:
    seconds = end - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">IBI", len(content) << 8 | kind, flags, stream) + content


def _format_timeout(seconds: float) -> bytes:
    """Returns a timeout with at most 8 digits."""
    micros = max(1, round(1e6 * seconds))
    return b"%du" % micros if micros < 10**8 else b"%dm" % (micros // 1000)


# -- headers, in the encoding HPACK ---------------------------------------------------------------


def _literal(name: bytes, value: bytes) -> bytes:
    """Encodes a header that no table stores."""
    return b"\0" + _encode_text(name) + _encode_text(value)


def _encode_text(text: bytes) -> bytes:
    length, encoded = len(text), bytearray()
    if length < 127:
        return bytes((length,)) + text
    encoded.append(127)
    length -= 127
    while length >= 128:
        encoded.append(length & 127 | 128)
        length >>= 7
    encoded.append(length)
    return bytes(encoded) + text


@lru_cache(maxsize=16)
def _read_headers(block: bytes) -> dict[bytes, bytes | None]:
    """Decodes a block of headers; the value of a header in Huffman code is None.

    Raises:
        _UnsupportedError: A name is in Huffman code or in the table of the connection.
    """
    found: dict[bytes, bytes | None] = {}
    at = 0
    try:
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _read_number(block, at, 7)
                if not 0 < index <= _STATIC_HEADERS:
                    raise _UnsupportedError
                found[b":status"] = b"200" if index == _STATUS_200 else found.get(b":status")
            elif first & 0xE0 == 0x20:
                _, at = _read_number(block, at, 5)  # the size of the table
            else:
                index, at = _read_number(block, at, 6 if first & 0x40 else 4)
                if index > _STATIC_HEADERS:
                    raise _UnsupportedError
                name: bytes | None = b""
                if index == 0:
                    name, at = _read_text(block, at)
                value, at = _read_text(block, at)
                if name is None:
                    raise _UnsupportedError
                found[name] = value
    except IndexError:
        raise OSError("a block of headers is incomplete") from None
    return found


def _read_number(block: bytes, at: int, num_bits: int) -> tuple[int, int]:
    most = (1 << num_bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    for shift in range(0, 28, 7):
        byte = block[at]
        at += 1
        value += (byte & 127) << shift
        if byte < 128:
            return value, at
    raise OSError("a header is too long")


def _read_text(block: bytes, at: int) -> tuple[bytes | None, int]:
    is_huffman = block[at] & 0x80
    length, at = _read_number(block, at, 7)
    text = block[at : at + length]
    if len(text) < length:
        raise IndexError
    return None if is_huffman else text, at + length


def _outcome(headers: dict[bytes, bytes | None], content: bytes) -> Outcome | None:
    """Returns the outcome of a call; None if grpcio should repeat it, for the reply of a proxy or for a
    shard map.

    Raises:
        _UnsupportedError: The reply is compressed.
    """
    if headers.get(b":status") != b"200" or b"grpc-status" not in headers:
        return None
    status, message = headers[b"grpc-status"], headers.get(b"grpc-message", b"")
    if status is None or message is None:
        raise _UnsupportedError
    if status == b"0":
        if content[:1] == b"\1":
            raise _UnsupportedError
        if content[:5] != b"\0" + (len(content) - 5).to_bytes(4, "big", signed=True):
            raise OSError("the length of the reply is wrong")
        return Outcome(content[5:])
    if SHARD_MAP_METADATA.encode() in headers:
        return None
    name = _STATUS_NAMES.get(status, "UNKNOWN")
    return Outcome(None, name, unquote(message.decode("ascii", "replace")))
