"""The rendezvous of ranks that are threads of one process."""

from __future__ import annotations

from sparring.adapter import SingleRendezvous
from sparring.contracts import ShardMap

__all__ = ["ThreadRendezvous"]


class ThreadRendezvous(SingleRendezvous):
    """Rendezvous for a `LocalGroup`. The partitions are distributed evenly over the ranks.

    Args:
        world_size: number of threads.
    """

    def __init__(self, world_size: int) -> None:
        super().__init__()
        self._shard_map = ShardMap.balanced(world_size)

    def shard_map(self) -> ShardMap:
        return self._shard_map
