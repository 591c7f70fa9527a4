"""The rendezvous of ranks that are threads of one process."""

from __future__ import annotations

from sparring.adapter import SingleRendezvous
from sparring.contracts import ShardMap

__all__ = ["ThreadRendezvous"]


class ThreadRendezvous(SingleRendezvous):
    """Goes with a `LocalGroup`: ranks share out all partitions evenly.

    Args:
        world_size: how many threads.
    """

    def __init__(self, world_size: int) -> None:
        super().__init__()
        self._shard_map = ShardMap.balanced(world_size)

    def shard_map(self) -> ShardMap:
        return self._shard_map
