"""Which server answers for a name: one, the master that Sentinel knows, or the one of its slot."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import RedisError

from sparring_redis.connection import Access, Link
from sparring_redis.deadline import Deadline
from sparring_redis.place import Address, Place
from sparring_redis.server import Server

__all__ = ["ClusterTopology", "SentinelTopology", "StandaloneTopology", "Topology"]

NUM_SLOTS = 16_384


class Topology(ABC):
    """Finds servers, and keeps what it knows of each as long as it lives. Any thread may ask."""

    def __init__(self, place: Place, access: Access) -> None:
        self.place = place
        self._access = access
        self._lock = threading.RLock()
        self._servers: dict[Address, Server] = {}

    def server(self, address: Address) -> Server:
        with self._lock:
            if address not in self._servers:
                self._servers[address] = Server(address, self._access)
            return self._servers[address]

    @abstractmethod
    def server_of(self, slot: int) -> Server | None:
        """Who answers for `slot`; None: nobody, as far as is known."""

    @abstractmethod
    def refresh(self, deadline: Deadline) -> None:
        """Asks again who answers for what.

        Raises:
            redis.exceptions.RedisError, OSError: nobody who knows can be reached.
        """

    def close(self) -> None:
        with self._lock:
            for server in self._servers.values():
                server.close()


class StandaloneTopology(Topology):
    """One server."""

    def server_of(self, slot: int) -> Server | None:
        return self.server(self.place.addresses[0])

    def refresh(self, deadline: Deadline) -> None:
        """It is where it was."""


class SentinelTopology(Topology):
    """The master of a service; the sentinels know which one that is now."""

    def __init__(self, place: Place, access: Access, sentinel_access: Access) -> None:
        super().__init__(place, access)
        self._sentinel_access = sentinel_access
        self._master: Address | None = None

    def server_of(self, slot: int) -> Server | None:
        return None if self._master is None else self.server(self._master)

    def refresh(self, deadline: Deadline) -> None:
        failure: Exception | None = None
        for address in self.place.addresses:
            try:
                with _visit(address, self._sentinel_access, deadline) as link:
                    found = link.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.place.service)
                if found is None:
                    raise RedisError(f"the sentinel knows no master {self.place.service!r}")
                self._master = Address(found[0].decode(), int(found[1]))
                return
            except (RedisError, OSError) as error:
                failure = error
        assert failure is not None  # there is at least one sentinel
        raise failure


class ClusterTopology(Topology):
    """The master of each slot."""

    def __init__(self, place: Place, access: Access) -> None:
        super().__init__(place, access)
        self._owners: list[Server | None] = [None] * NUM_SLOTS
        self._known = list(place.addresses)

    def server_of(self, slot: int) -> Server | None:
        return self._owners[slot]

    def refresh(self, deadline: Deadline) -> None:
        failure: Exception | None = None
        for address in self._known:
            try:
                # A stopped node must not take the time in which another one would answer.
                part = Deadline(max(deadline.remaining() / 3, 0.05))
                with _visit(address, self._access, part) as link:
                    self._take_over(link.ask("CLUSTER", "SLOTS"), address)
                return
            except (RedisError, OSError) as error:
                failure = error
        assert failure is not None  # there is at least one address
        raise failure

    def _take_over(self, ranges: Any, asked: Address) -> None:
        owners: list[Server | None] = [None] * NUM_SLOTS
        masters: list[Address] = []
        for first, last, master, *_ in ranges:
            # A node that does not know its own name is the one that was asked.
            host = master[0].decode() if master[0] else asked.host
            address = Address(host, int(master[1]))
            masters.append(address)
            owners[first : last + 1] = [self.server(address)] * (last + 1 - first)
        with self._lock:
            self._owners = owners
            self._known = list(dict.fromkeys([*masters, *self.place.addresses]))


@contextmanager
def _visit(address: Address, access: Access, deadline: Deadline) -> Iterator[Link]:
    """A connection for one question."""
    link = Link(address, access, deadline)
    try:
        yield link
    finally:
        link.close()
