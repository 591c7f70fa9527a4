"""Ranks that meet in no collective: each keeps its own shard, as a server of a service does."""

from __future__ import annotations

from sparring.contracts.rendezvous import Membership
from sparring.contracts.shard_map import ShardMap
from sparring.rendezvous.environment import SingleRendezvous

__all__ = ["ApartRendezvous"]


class ApartRendezvous(SingleRendezvous):
    """Rank `rank` of `world_size`, in a process that no other rank waits for.

    A container that has it takes its steps alone, over the keys of its shard, and writes its part of a
    snapshot as that rank of a job of so many ranks would: `SaveOptions.attempt` says which parts belong
    together.
    """

    is_apart = True

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        self._membership = Membership(rank, world_size)

    def membership(self) -> Membership:
        return self._membership

    def shard_map(self) -> ShardMap:
        return ShardMap.balanced(self._membership.world_size)
