"""One Redis server: its idle connections, and protection against late writes.

If the reply to a write does not arrive, its commands may still be in transit. For example, a
stopped server reads them when it resumes, possibly after it has executed a newer write from another
connection. The old row would replace the newer one. Therefore a connection that failed with writes
in flight is *condemned*, and before the next write the server is told to close it (``CLIENT
KILL``). The server runs one command at a time, so commands that it has not run by then will never
run. If the server is gone, so are they.
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
    """Provides connections to one server. It is thread-safe."""

    def __init__(self, address: Address, access: Access) -> None:
        self.address = address
        self._access = access
        self._lock = threading.Lock()
        self._idle: list[RedisConnection] = []
        self._condemned: list[tuple[bytes, ...]] = []
        self._process = os.getpid()

    def acquire(self, deadline: Deadline, *, is_write: bool) -> RedisConnection:
        """Returns a connection for one call; for writes, only after no older write can arrive late.

        Raises:
            redis.exceptions.RedisError, OSError: the server is unreachable or does not reply.
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
        """Takes back a connection without pending replies."""
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
                    # After a fork, both processes would read each other's replies.
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
            # The id alone is not enough, because after a restart of the server another client may
            # have the same id.
            connection.ask("CLIENT", "KILL", "ID", number, "ADDR", address)
            with self._lock:
                if identity in self._condemned:
                    self._condemned.remove(identity)


def _read_identity(connection: RedisConnection) -> tuple[bytes, ...]:
    """Returns the id and the address by which the server knows this connection."""
    reply = connection.ask("CLIENT", "INFO")
    fields = dict(each.partition(b"=")[::2] for each in bytes(reply).split())
    if b"id" not in fields or b"addr" not in fields:
        raise ResponseError(f"CLIENT INFO returned no id or no addr: {reply[:200]!r}")
    # No client has this id. The command detects a missing permission before it is needed.
    connection.ask("CLIENT", "KILL", "ID", 2**63 - 1, "ADDR", fields[b"addr"])
    return fields[b"id"], fields[b"addr"]
