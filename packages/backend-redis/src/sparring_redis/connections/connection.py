"""Connections of redis-py whose every wait is bounded by our own deadline."""

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
    """How to get in. Its fields stay out of every message."""

    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    database: int = 0
    context: ssl.SSLContext | None = field(default=None, repr=False)
    """How to encrypt; None: not at all."""
    what: str = "Redis"
    """For messages, what answers there."""

    @property
    def is_encrypted(self) -> bool:
        return self.context is not None


class _Bounded:
    """Wraps the socket of a connection; mixed in before a connection class of redis-py."""

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
        # The client library would read the files again for each connection.
        return self.context.wrap_socket(sock, server_hostname=self.host)


class _Unix(_Bounded, UnixDomainSocketConnection):
    pass


class RedisConnection:
    """One connection: connected once, used by one call at a time, and thrown away when it fails.

    Args:
        address: of the server.
        access: user, password, database, TLS.
        deadline: of the call that opens it.

    Raises:
        RejectedError: it does not let us in.
        redis.exceptions.RedisError: it cannot be reached.
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
            "retry": Retry(NoBackoff(), 0),  # ours is the only one
        }
        # Not all of redis-py's classes have types, so none of them is asked for any.
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
        with raise_lasting_errors(f"{access.what} at {address}"):
            self._connection.connect()
        self.identity: tuple[bytes, ...] | None = None

    def use(self, deadline: Deadline) -> None:
        """From now on waits end at `deadline`."""
        self._connection.bounded.deadline = deadline

    @property
    def is_stale(self) -> bool:
        """Whether an idle connection was closed by the server, or has data that was not requested."""
        poll = select.poll()
        poll.register(self._connection.bounded.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def send(self, data: bytes) -> None:
        """Sends commands that are packed already."""
        self._connection.send_packed_command([data], check_health=False)

    def receive(self) -> Any:
        """The next reply; an error of the server is returned, not raised."""
        try:
            return self._connection.read_response()
        except ResponseError as error:
            return error

    def ask(self, *words: Any) -> Any:
        """One command and its reply.

        Raises:
            redis.exceptions.ResponseError: the server refused it.
        """
        self.send(encode_command(words))
        return self._connection.read_response()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.disconnect()


def encode_command(words: Sequence[bytes | str | int]) -> bytes:
    """A command as Redis reads it."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)
