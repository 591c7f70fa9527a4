"""A world of one rank: a process without a launcher."""

from __future__ import annotations

import threading

from sparring.contracts.rendezvous import Membership, Rendezvous
from sparring.contracts.shard_map import ShardMap
from sparring.errors import DeadlineError

__all__ = ["SingleRendezvous"]


class SingleRendezvous(Rendezvous):
    """Rank 0 of 1."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def membership(self) -> Membership:
        return Membership(rank=0, world_size=1)

    def shard_map(self) -> ShardMap:
        return ShardMap.balanced(1)

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = bytes(value)
            self._changed.notify_all()

    def get(self, key: str, timeout_seconds: float) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_seconds):
                raise DeadlineError(
                    f"rendezvous: no rank set {key!r} within {timeout_seconds:g} s; in a world of "
                    "one rank it must be set by this process",
                    key=key,
                )
            return self._values[key]

    def close(self) -> None:
        """Nothing is held."""
