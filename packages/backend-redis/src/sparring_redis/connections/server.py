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

from sparring_redis.connections.connection import Access, Link
from sparring_redis.connections.deadline import Deadline
from sparring_redis.connections.place import Address

__all__ = ["Server"]

_MOST_IDLE = 8


class Server:
    """A place to get connections from. Any thread may."""

    def __init__(self, address: Address, access: Access) -> None:
        self.address = address
        self._access = access
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        self._condemned: list[tuple[bytes, ...]] = []
        self._process = os.getpid()

    def acquire(self, deadline: Deadline, *, is_write: bool) -> Link:
        """A connection for one call; one for writes only after no older write can come late.

        Raises:
            redis.exceptions.RedisError, OSError: the server cannot be reached, or does not answer.
        """
        link = self._take() or Link(self.address, self._access, deadline)
        link.use(deadline)
        try:
            if is_write:
                self._drop_condemned(link)
                if link.identity is None:
                    link.identity = _identity_of(link)
        except BaseException:
            link.close()
            raise
        return link

    def release(self, link: Link) -> None:
        """Takes back a connection on which nothing is under way."""
        with self._lock:
            if len(self._idle) < _MOST_IDLE and self._process == os.getpid():
                self._idle.append(link)
                return
        link.close()

    def discard(self, link: Link, *, has_writes: bool) -> None:
        """Closes a connection that failed."""
        link.close()
        if has_writes and link.identity is not None:
            with self._lock:
                self._condemned.append(link.identity)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def _take(self) -> Link | None:
        while True:
            with self._lock:
                if self._process != os.getpid():
                    # After a fork both processes would read each other's replies.
                    self._idle, self._process = [], os.getpid()
                if not self._idle:
                    return None
                link = self._idle.pop()
            if not link.is_stale:
                return link
            link.close()

    def _drop_condemned(self, link: Link) -> None:
        with self._lock:
            condemned = list(self._condemned)
        for identity in condemned:
            number, address = identity
            # By number and address: after a restart another client may have the number.
            link.ask("CLIENT", "KILL", "ID", number, "ADDR", address)
            with self._lock:
                if identity in self._condemned:
                    self._condemned.remove(identity)


def _identity_of(link: Link) -> tuple[bytes, ...]:
    """The number and the address by which the server knows this connection."""
    reply = link.ask("CLIENT", "INFO")
    fields = dict(each.partition(b"=")[::2] for each in bytes(reply).split())
    if b"id" not in fields or b"addr" not in fields:
        raise ResponseError(f"CLIENT INFO says neither id nor addr: {reply[:200]!r}")
    # No client has this number. A user without the permission should learn it before it is needed.
    link.ask("CLIENT", "KILL", "ID", 2**63 - 1, "ADDR", fields[b"addr"])
    return fields[b"id"], fields[b"addr"]
