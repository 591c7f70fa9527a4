"""One Redis server: its idle connections, and writes that must not come late.

When the reply to a write does not come, the commands may still wait on the way: a stopped server
reads them when it goes on, after it has taken a newer write from another connection. The old row
would replace the newer one. So a connection that failed with writes under way is *condemned*, and
before the next write the server is told to drop it (``CLIENT KILL``). It runs one command at a time,
so what it has not run by then it never will. Where the server is gone there is nothing to drop.
"""

from __future__ import annotations

import os
import threading

from redis.exceptions import ResponseError

from sparring_redis.connections.connection import Access, RedisConnection
from sparring_redis.connections.deadline import Deadline
from sparring_redis.connections.location import Address

__all__ = ["Server"]

_MAX_IDLE = 8


class Server:
    """A place to get connections from. Any thread may."""

    def __init__(self, address: Address, access: Access) -> None:
        self.address = address
        self._access = access
        self._lock = threading.Lock()
        self._idle: list[RedisConnection] = []
        self._condemned: list[tuple[bytes, ...]] = []
        self._process = os.getpid()

    def acquire(self, deadline: Deadline, *, is_write: bool) -> RedisConnection:
        """A connection for one call; one for writes only after no older write can come late.

        Raises:
            redis.exceptions.RedisError, OSError: the server cannot be reached, or does not answer.
        """
        connection = self._take() or RedisConnection(self.address, self._access, deadline)
        connection.use(deadline)
        try:
            if is_write:
                self._kill_condemned(connection)
                if connection.identity is None:
                    connection.identity = _read_identity(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def release(self, connection: RedisConnection) -> None:
        """Takes back a connection on which nothing is under way."""
        with self._lock:
            if len(self._idle) < _MAX_IDLE and self._process == os.getpid():
                self._idle.append(connection)
                return
        connection.close()

    def discard(self, connection: RedisConnection, *, has_writes: bool) -> None:
        """Closes a connection that failed."""
        connection.close()
        if has_writes and connection.identity is not None:
            with self._lock:
                self._condemned.append(connection.identity)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> RedisConnection | None:
        while True:
            with self._lock:
                if self._process != os.getpid():
                    # After a fork both processes would read each other's replies.
                    self._idle, self._process = [], os.getpid()
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not connection.is_stale:
                return connection
            connection.close()

    def _kill_condemned(self, connection: RedisConnection) -> None:
        with self._lock:
            condemned = list(self._condemned)
        for identity in condemned:
            number, address = identity
            # By number and address: after a restart another client may have the number.
            connection.ask("CLIENT", "KILL", "ID", number, "ADDR", address)
            with self._lock:
                if identity in self._condemned:
                    self._condemned.remove(identity)


def _read_identity(connection: RedisConnection) -> tuple[bytes, ...]:
    """The number and the address by which the server knows this connection."""
    reply = connection.ask("CLIENT", "INFO")
    fields = dict(each.partition(b"=")[::2] for each in bytes(reply).split())
    if b"id" not in fields or b"addr" not in fields:
        raise ResponseError(f"CLIENT INFO says neither id nor addr: {reply[:200]!r}")
    # No client has this number. A user without the permission should learn it before it is needed.
    connection.ask("CLIENT", "KILL", "ID", 2**63 - 1, "ADDR", fields[b"addr"])
    return fields[b"id"], fields[b"addr"]
