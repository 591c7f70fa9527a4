"""Connections of redis-py in which every wait ends at the deadline of the current call."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ResponseError
from redis.retry import Retry

from sparring_redis.connections.deadline import BoundedSocket, Deadline
from sparring_redis.connections.location import Address
from sparring_redis.connections.refusals import raise_lasting_errors

__all__ = ["Access", "RedisConnection", "encode_command"]

_READ_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials of a server. Secrets are excluded from its representation."""

    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    database: int = 0
    context: ssl.SSLContext | None = field(default=None, repr=False)
    """TLS settings; None for no encryption."""
    what: str = "Redis"
    """Kind of server, for messages."""

    @property
    def is_encrypted(self) -> bool:
        return self.context is not None


class _Bounded:
    """Mixin for a connection class of redis-py. It wraps the socket, so that waits end at
    `deadline`."""

    deadline: Deadline
    bounded: BoundedSocket

    def _connect(self) -> BoundedSocket:
        self.bounded = BoundedSocket(super()._connect(), self.deadline)  # type: ignore[misc]
        return self.bounded


class _Plain(_Bounded, Connection):
    pass


class _Encrypted(_Bounded, SSLConnection):
    context: ssl.SSLContext

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        # redis-py would read the files again for each connection.
        return self.context.wrap_socket(sock, server_hostname=self.host)


class _Unix(_Bounded, UnixDomainSocketConnection):
    pass


class RedisConnection:
    """One connection. It is used by one call at a time and closed when it fails.

    Args:
        address: address of the server.
        access: user, password, database and TLS settings.
        deadline: deadline of the call that opens it.

    Raises:
        RejectedError: the server rejected the credentials or the TLS handshake.
        redis.exceptions.RedisError: the server cannot be reached.
    """

    def __init__(self, address: Address, access: Access, deadline: Deadline) -> None:
        self.address = address
        seconds = deadline.remaining()
        options: dict[str, Any] = {
            "username": access.username,
            "password": access.password,
            "db": access.database,
            "protocol": 2,
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
            "socket_read_size": _READ_BYTES,
            "retry": Retry(NoBackoff(), 0),  # the client retries
        }
        # Any, because not all of redis-py's classes have types.
        kind: Any = _Plain
        if address.is_path:
            kind, options = _Unix, {"path": address.host, **options}
        else:
            options = {"host": address.host, "port": address.port, **options}
            if access.is_encrypted:
                kind = _Encrypted
        self._connection = kind(**options)
        self._connection.deadline = deadline
        self._connection.context = access.context
        try:
            with raise_lasting_errors(f"{access.what} at {address}"):
                self._connection.connect()
        except BaseException:
            self.close()
            raise
        self.identity: tuple[bytes, ...] | None = None

    def use(self, deadline: Deadline) -> None:
        """Makes all further waits end at `deadline`."""
        self._connection.bounded.deadline = deadline

    @property
    def is_stale(self) -> bool:
        """Whether an idle connection was closed by the server, or has data that was not requested."""
        poll = select.poll()
        poll.register(self._connection.bounded.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def send(self, data: bytes) -> None:
        """Sends encoded commands."""
        self._connection.send_packed_command([data], check_health=False)

    def receive(self) -> Any:
        """Reads the next reply. An error of the server is returned, not raised."""
        try:
            return self._connection.read_response()
        except ResponseError as error:
            return error

    def ask(self, *words: Any) -> Any:
        """Sends one command and reads its reply.

        Raises:
            redis.exceptions.ResponseError: the server rejected the command.
        """
        self.send(encode_command(words))
        return self._connection.read_response()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.disconnect()
        # Objects of redis-py refer to each other in cycles. Otherwise, the buffer of 256 KiB would remain
        # until a collection of all objects, which is rare in a process with many objects.
        with contextlib.suppress(AttributeError):  # another version may have another private name
            self._connection._parser._buffer = None


def encode_command(words: Sequence[bytes | str | int]) -> bytes:
    """Encodes a command in the Redis protocol."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)
