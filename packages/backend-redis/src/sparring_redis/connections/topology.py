"""Finds the server for a slot: the only one, the master known to Sentinel, or the owner in a cluster."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from redis.exceptions import RedisError

from sparring_redis.connections.connection import Access, RedisConnection
from sparring_redis.connections.deadline import Deadline
from sparring_redis.connections.location import Address, Location
from sparring_redis.connections.refusals import RejectedError, raise_lasting_errors
from sparring_redis.connections.server import Server

__all__ = ["ClusterTopology", "SentinelTopology", "StandaloneTopology", "Topology"]

NUM_SLOTS = 16_384

_T = TypeVar("_T")


class Topology(ABC):
    """Finds servers and keeps their connections. It is thread-safe."""

    def __init__(self, place: Location, access: Access) -> None:
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
    def find_server(self, slot: int) -> Server | None:
        """Returns the server that owns `slot`, or None if it is unknown."""

    def slots(self) -> list[int]:
        """Returns one slot of each known server that owns slots."""
        return [0]

    @abstractmethod
    def refresh(self, deadline: Deadline) -> None:
        """Queries again which server owns which slots.

        Raises:
            redis.exceptions.RedisError, OSError: no server that can report the topology was
                reached.
        """

    def close(self) -> None:
        with self._lock:
            for server in self._servers.values():
                server.close()


class StandaloneTopology(Topology):
    """Topology of a single server."""

    def find_server(self, slot: int) -> Server | None:
        return self.server(self.place.addresses[0])

    def refresh(self, deadline: Deadline) -> None:
        """Does nothing, because the address does not change."""


class SentinelTopology(Topology):
    """Topology of a service whose current master the sentinels know."""

    def __init__(self, place: Location, access: Access, sentinel_access: Access) -> None:
        super().__init__(place, access)
        self._sentinels = _Directory(
            place.addresses, sentinel_access, "see whether a sentinel answers there"
        )
        self._master: Address | None = None

    def find_server(self, slot: int) -> Server | None:
        return None if self._master is None else self.server(self._master)

    def refresh(self, deadline: Deadline) -> None:
        self._master = self._sentinels.ask(self._master_of, deadline)

    def _master_of(self, connection: RedisConnection) -> Address:
        found = connection.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.place.service)
        if found is None:
            raise RejectedError(
                f"sentinel at {connection.address} has no master {self.place.service!r}; set the option "
                "service to a master that it monitors"
            )
        return Address(found[0].decode(), int(found[1]))


class ClusterTopology(Topology):
    """Topology of a cluster, in which each slot has a master."""

    def __init__(self, place: Location, access: Access) -> None:
        super().__init__(place, access)
        self._owners: list[Server | None] = [None] * NUM_SLOTS
        self._nodes = _Directory(
            place.addresses, access, "see whether a node of a cluster answers there"
        )

    def find_server(self, slot: int) -> Server | None:
        return self._owners[slot]

    def slots(self) -> list[int]:
        slot_of: dict[Server | None, int] = {}
        for slot, server in enumerate(self._owners):
            slot_of.setdefault(server, slot)
        return [slot for server, slot in slot_of.items() if server is not None]

    def refresh(self, deadline: Deadline) -> None:
        self._nodes.ask(self._update_slots, deadline)

    def _update_slots(self, connection: RedisConnection) -> None:
        ranges = connection.ask("CLUSTER", "SLOTS")
        owners: list[Server | None] = [None] * NUM_SLOTS
        masters: list[Address] = []
        for first, last, master, *_ in ranges:
            # An empty host name means the queried node, which does not know its own name.
            host = master[0].decode() if master[0] else connection.address.host
            address = Address(host, int(master[1]))
            masters.append(address)
            owners[first : last + 1] = [self.server(address)] * (last + 1 - first)
        with self._lock:
            self._owners = owners
        self._nodes.learn([*masters, *self.place.addresses])


class _Directory:
    """Servers that can report the topology. It is thread-safe."""

    def __init__(self, addresses: Sequence[Address], access: Access, advice: str) -> None:
        self._advice = advice
        self._addresses = list(addresses)
        self._access = access
        self._lock = threading.Lock()

    def learn(self, addresses: Sequence[Address]) -> None:
        """Replaces the servers to query."""
        with self._lock:
            self._addresses = list(dict.fromkeys(addresses))

    def ask(self, question: Callable[[RedisConnection], _T], deadline: Deadline) -> _T:
        """Returns the first reply. The server that replied is queried first the next time.

        Raises:
            RejectedError: all servers rejected the request.
            redis.exceptions.RedisError, OSError: no server replied.
        """
        failures: list[Exception] = []
        with self._lock:
            addresses = list(self._addresses)
        for address in addresses:
            who = f"{self._access.what} at {address}"
            try:
                with (
                    _open_connection(
                        address, self._access, self._part(deadline, addresses)
                    ) as connection,
                    raise_lasting_errors(who, self._advice),
                ):
                    answer = question(connection)
            except (RedisError, OSError) as error:
                failures.append(error)
                if deadline.is_over:
                    break
                continue
            with self._lock:
                if address in self._addresses:
                    self._addresses.remove(address)
                    self._addresses.insert(0, address)
            return answer
        raise self._worst(failures)

    def _worst(self, failures: Sequence[Exception]) -> Exception:
        """Returns the error to raise; it is permanent only if all servers rejected the request."""
        refused = [each for each in failures if isinstance(each, RejectedError)]
        others = [each for each in failures if not isinstance(each, RejectedError)]
        if refused and others:
            return RedisError(f"{others[-1]}, and {refused[0]}")
        return (refused or others)[-1]

    def _part(self, deadline: Deadline, addresses: Sequence[Address]) -> Deadline:
        """Returns the deadline for one server. It leaves time to query the others if this one
        hangs."""
        left = deadline.remaining()
        return Deadline(left if len(addresses) == 1 else max(left / 3, 0.05))


@contextmanager
def _open_connection(
    address: Address, access: Access, deadline: Deadline
) -> Iterator[RedisConnection]:
    """Opens a connection for one request."""
    connection = RedisConnection(address, access, deadline)
    try:
        yield connection
    finally:
        connection.close()
