"""Shards of a lookup service: equal, contiguous ranges of the 4,096 partitions, each with replicas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.contracts import NUM_PARTITIONS, ShardMap, partition
from sparring.errors import InvalidArgumentError
from sparring_serve.wire.fields import decode, encode
from sparring_serve.wire.messages import Replicas, ShardMapMessage

__all__ = ["ShardReplicas"]


@dataclass(frozen=True)
class ShardReplicas:
    """Which servers have which partitions.

    Args:
        shards: of each shard the addresses of its replicas, ``host:port``.
        number: of this map; the larger is the newer.

    Raises:
        InvalidArgumentError: no shard, more than 4,096, or one without a replica.
    """

    shards: tuple[tuple[str, ...], ...]
    number: int = 1

    def __post_init__(self) -> None:
        if not 1 <= len(self.shards) <= NUM_PARTITIONS or not all(self.shards):
            raise InvalidArgumentError(
                f"shards: must be 1 to {NUM_PARTITIONS}, each with the address of a replica at least, "
                f"found {len(self.shards)}: {self.shards!r}; list host:port of all replicas of each"
            )

    @property
    def num_shards(self) -> int:
        return len(self.shards)

    def partitions_of(self, shard: int) -> tuple[int, int]:
        """The half-open range of partitions of a shard."""
        owned = ShardMap.balanced(self.num_shards).partitions_of(shard)
        return int(owned[0]), int(owned[-1]) + 1

    def shard_of(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """``(n,)``: the shard of each key."""
        owners: npt.NDArray[np.int32] = ShardMap.balanced(self.num_shards).owners[partition(keys)]
        return owners

    def to_bytes(self) -> bytes:
        """As a ShardMap message."""
        return encode(ShardMapMessage(self.number, tuple(map(Replicas, self.shards))))

    @classmethod
    def from_bytes(cls, content: bytes) -> ShardReplicas:
        """The inverse of `to_bytes`.

        Raises:
            MessageError, InvalidArgumentError: the bytes are none, or name no shard.
        """
        return cls.from_message(decode(ShardMapMessage, content))

    @classmethod
    def from_message(cls, message: ShardMapMessage) -> ShardReplicas:
        return cls(tuple(each.addresses for each in message.shards), message.number)
