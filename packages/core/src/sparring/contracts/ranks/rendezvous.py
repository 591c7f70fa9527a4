"""The rendezvous contract: who is here, and who owns what.

A rendezvous turns an environment (a launcher's variables, a store on the network) into a
`Membership`, keeps the `ShardMap`, and offers a small key-value store for ranks to meet. It starts
no process: torchrun, mpirun and Kubernetes do that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from sparring.contracts.ranks.shard_map import ShardMap
from sparring.errors import InvalidArgumentError

__all__ = ["Membership", "Rendezvous"]


@dataclass(frozen=True, slots=True)
class Membership:
    """This rank's place among all ranks."""

    rank: int
    world_size: int
    local_rank: int = 0
    """The rank among those on this machine; it chooses the device."""
    local_world_size: int = 1
    """Ranks on this machine, which share its cores."""
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise InvalidArgumentError(
                f"membership: rank must be at least 0 and below world_size, found rank {self.rank} "
                f"of {self.world_size}"
            )


class Rendezvous(ABC):
    """Where ranks meet. All methods may be called from any thread."""

    is_independent: bool = False
    """Whether ranks meet in no collective: each keeps its shard alone, as servers of a lookup service
    do, and takes its own steps."""

    @abstractmethod
    def membership(self) -> Membership:
        """This rank's place. It stays the same until the job is restarted."""

    def shard_map(self) -> ShardMap:
        """Owner of each partition, equal on all ranks: unless a class overrides it, all ranks share
        them evenly."""
        return ShardMap.balanced(self.membership().world_size)

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Publishes a small value to all ranks. Setting a key again replaces it."""

    @abstractmethod
    def get(self, key: str, timeout_seconds: float) -> bytes:
        """Waits until some rank has set `key`.

        Raises:
            DeadlineError: no rank did within `timeout_seconds`.
        """

    @abstractmethod
    def close(self) -> None:
        """Leaves. A second call does nothing."""
