"""The rendezvous contract: how a process learns its rank and finds the other ranks.

A rendezvous reads the `Membership` of this process from its environment, such as the variables of a
launcher or a store on the network. It also provides the `ShardMap`, and a small key-value store that
all ranks share. It does not start processes: torchrun, mpirun and Kubernetes do that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from sparring.contracts.ranks.shard_map import ShardMap
from sparring.errors import InvalidArgumentError

__all__ = ["Membership", "Rendezvous"]


@dataclass(frozen=True, slots=True)
class Membership:
    """Rank, world size and device of this process."""

    rank: int
    """``0 <= rank < world_size``."""
    world_size: int
    """Number of ranks."""
    local_rank: int = 0
    """Rank among the ranks on this machine; it determines the device."""
    local_world_size: int = 1
    """Number of ranks on this machine, which share its cores."""
    device: str = "cpu"
    """Device of this rank, such as ``cpu`` or ``cuda:0``."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise InvalidArgumentError(
                f"membership: rank must be at least 0 and below world_size, found rank {self.rank} "
                f"of {self.world_size}"
            )


class Rendezvous(ABC):
    """Membership of this rank, and a key-value store for all ranks.

    All methods may be called from any thread.
    """

    is_independent: bool = False
    """Whether each rank manages its shard and counts steps independently, without a common
    collective, like the servers of a lookup service."""

    @abstractmethod
    def membership(self) -> Membership:
        """Returns the membership of this rank. It does not change until the job is restarted."""

    def shard_map(self) -> ShardMap:
        """Returns the owner of each partition, the same on all ranks; by default `ShardMap.balanced`."""
        return ShardMap.balanced(self.membership().world_size)

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Publishes a small value to all ranks. A second call with the same key replaces the value.

        Args:
            key: name of the value, the same namespace for all ranks of the job.
            value: content of the value.
        """

    @abstractmethod
    def get(self, key: str, timeout_seconds: float) -> bytes:
        """Waits until a rank has set `key`, and returns the value.

        Args:
            key: name of the value, as for `set`.
            timeout_seconds: maximum duration of the wait.

        Raises:
            DeadlineError: no rank set it within `timeout_seconds`.
        """

    @abstractmethod
    def close(self) -> None:
        """Disconnects. A second call does nothing."""
