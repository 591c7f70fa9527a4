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
    """Shard map: the servers of each range of partitions.

    Args:
        shards: Addresses ``host:port`` of the replicas of each shard.
        number: Version of this map; the largest is the newest.

    Raises:
        InvalidArgumentError: There are no shards, more than 4,096, or a shard without replicas.

    Examples:
        >>> from sparring_serve import ShardReplicas
        >>> shards = ShardReplicas((("host-0:7000", "host-1:7000"), ("host-2:7000",)))
        >>> shards.num_shards, shards.partitions_of(1)
        (2, (2048, 4096))
    """

    shards: tuple[tuple[str, ...], ...]
    number: int = 1

    def __post_init__(self) -> None:
        if not 1 <= len(self.shards) <= NUM_PARTITIONS or not all(self.shards):
            raise InvalidArgumentError(
                f"shards: must be 1 to {NUM_PARTITIONS} shards with at least one replica each, found "
                f"{len(self.shards)}: {self.shards!r}; list host:port of all replicas of each shard"
            )

    @property
    def num_shards(self) -> int:
        return len(self.shards)

    def partitions_of(self, shard: int) -> tuple[int, int]:
        """Returns the half-open range of partitions of a shard.

        Args:
            shard: Number of the shard, from 0.
        """
        owned = ShardMap.balanced(self.num_shards).partitions_of(shard)
        return int(owned[0]), int(owned[-1]) + 1

    def shard_of(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Returns the shard of each key, ``(n,)`` int32.

        Args:
            keys: ``(n,)`` int64.
        """
        owners: npt.NDArray[np.int32] = ShardMap.balanced(self.num_shards).owners[partition(keys)]
        return owners

    def to_bytes(self) -> bytes:
        """Encodes the map as a ShardMap message."""
        return encode(ShardMapMessage(self.number, tuple(map(Replicas, self.shards))))

    @classmethod
    def from_bytes(cls, content: bytes) -> ShardReplicas:
        """Decodes the result of `to_bytes`.

        Args:
            content: The encoded message.

        Raises:
            MessageError, InvalidArgumentError: The bytes are invalid or contain no shard.
        """
        return cls.from_message(decode(ShardMapMessage, content))

    @classmethod
    def from_message(cls, message: ShardMapMessage) -> ShardReplicas:
        """Converts a ShardMap message.

        Args:
            message: The decoded message.

        Raises:
            InvalidArgumentError: The message contains no shard.
        """
        return cls(tuple(each.addresses for each in message.shards), message.number)
