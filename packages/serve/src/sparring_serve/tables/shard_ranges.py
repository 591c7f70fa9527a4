"""Shards of a lookup service: equal, contiguous ranges of the 4,096 partitions, each with replicas.

While a parameter service is resized, its map lists the owner of each partition instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
        runs: Pairs of the end of a range of partitions and its shard, in order; empty if the shards
            have equal, contiguous ranges.

    Raises:
        InvalidArgumentError: There are no shards, more than 4,096, or a shard without replicas; or
            `runs` do not contain each partition once.

    Examples:
        >>> from sparring_serve import ShardReplicas
        >>> shards = ShardReplicas((("host-0:7000", "host-1:7000"), ("host-2:7000",)))
        >>> shards.num_shards, shards.partitions_of(1)
        (2, (2048, 4096))
    """

    shards: tuple[tuple[str, ...], ...]
    number: int = 1
    runs: tuple[tuple[int, int], ...] = ()
    owners: npt.NDArray[np.int32] = field(init=False, repr=False, compare=False)
    """``(4096,)``, the shard of each partition."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.shards) <= NUM_PARTITIONS or not all(self.shards):
            raise InvalidArgumentError(
                f"shards: must be 1 to {NUM_PARTITIONS} shards with at least one replica each, found "
                f"{len(self.shards)}: {self.shards!r}; list host:port of all replicas of each shard"
            )
        object.__setattr__(self, "owners", self._find_owners())

    def _find_owners(self) -> npt.NDArray[np.int32]:
        if not self.runs:
            return ShardMap.balanced(self.num_shards).owners
        ends = np.array([end for end, _ in self.runs], np.int64)
        shards = np.array([shard for _, shard in self.runs], np.int32)
        lengths = np.diff(ends, prepend=0)
        if ends[-1] != NUM_PARTITIONS or lengths.min() < 1 or shards.max() >= self.num_shards:
            raise InvalidArgumentError(
                f"shard map: the ranges must end at {NUM_PARTITIONS} in ascending order, with shards "
                f"below {self.num_shards}, found {self.runs}; use a map that a server sent"
            )
        return np.repeat(shards, lengths)

    def with_owners(self, owners: npt.NDArray[np.int32], number: int) -> ShardReplicas:
        """Returns the same shards with other owners of partitions.

        Args:
            owners: ``(4096,)``, the shard of each partition.
            number: Version of the new map.
        """
        if np.array_equal(owners, ShardMap.balanced(self.num_shards).owners):
            return replace(self, number=number, runs=())
        ends = [*(np.flatnonzero(np.diff(owners)) + 1).tolist(), NUM_PARTITIONS]
        runs = tuple((int(end), int(owners[end - 1])) for end in ends)
        return replace(self, number=number, runs=runs)

    @property
    def num_shards(self) -> int:
        return len(self.shards)

    def partitions_of(self, shard: int) -> tuple[int, int]:
        """Returns the half-open range of partitions of a shard in a map of contiguous ranges.

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
        owners: npt.NDArray[np.int32] = self.owners[partition(keys)]
        return owners

    def to_bytes(self) -> bytes:
        """Encodes the map as a ShardMap message."""
        return encode(self.to_message())

    def to_message(self) -> ShardMapMessage:
        """Converts the map to a ShardMap message."""
        runs = np.array(self.runs, "<u2").tobytes()
        return ShardMapMessage(self.number, tuple(map(Replicas, self.shards)), runs)

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
            InvalidArgumentError: The message contains no shard, or invalid ranges.
        """
        if len(message.owners) % 4:
            raise InvalidArgumentError(
                f"shard map: ranges need 4 bytes each, found {len(message.owners)} bytes"
            )
        runs = np.frombuffer(message.owners, "<u2").reshape(-1, 2).tolist()
        shards = tuple(each.addresses for each in message.shards)
        return cls(shards, message.number, tuple((end, shard) for end, shard in runs))
