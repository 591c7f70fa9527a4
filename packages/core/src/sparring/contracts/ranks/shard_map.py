"""Shard maps: the rank that owns each partition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.storage.results import as_array, is_whole
from sparring.errors import InvalidArgumentError

__all__ = ["NUM_PARTITIONS", "KeyOwners", "Shard", "ShardMap"]

NUM_PARTITIONS = 4096
"""Number of partitions. It can never change, because snapshots name their files by partition."""


@dataclass(frozen=True, eq=False, slots=True)
class Shard:
    """The part of a table that one rank stores.

    Args:
        rank: the rank.
        world_size: number of ranks.
        partitions: ``(n,)`` int64, ascending: the partitions whose rows the rank stores. It may be
            empty. It contains all 4,096 partitions if the table is replicated, if this rank owns the
            whole table, and with a world size of 1.
    """

    rank: int
    world_size: int
    partitions: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ShardMap:
    """Mapping of partitions to ranks.

    The partition of a key is the top 12 bits of its 64-bit hash (`kernels.functions.partition`), so it
    does not depend on the world size.

    Args:
        owners: ``(4096,)`` int32, the rank that owns each partition.
        world_size: number of ranks.

    Raises:
        InvalidArgumentError: `owners` has the wrong shape or dtype, or contains a number that is not a
            rank.
    """

    owners: npt.NDArray[np.int32]
    world_size: int

    def __post_init__(self) -> None:
        _check_world_size(self.world_size)
        given = as_array(self.owners, "shard map: owners")
        if given.shape != (NUM_PARTITIONS,):
            raise InvalidArgumentError(
                f"shard map: owners must have shape ({NUM_PARTITIONS},), one rank per partition, found "
                f"shape {given.shape}; create the map with ShardMap.balanced(world_size)"
            )
        if given.dtype.kind not in "iu":
            raise InvalidArgumentError(
                f"shard map: owners must be whole numbers, found dtype {given.dtype}; convert them to "
                "int32"
            )
        # Checked before the conversion to int32, which could wrap large numbers.
        if given.min() < 0 or given.max() >= self.world_size:
            raise InvalidArgumentError(
                f"shard map: owners must be ranks 0 to {self.world_size - 1}, found "
                f"{int(given.min())} to {int(given.max())}; pass the world size of these owners"
            )
        owners = given.astype(np.int32)
        owners.flags.writeable = False
        object.__setattr__(self, "owners", owners)

    @classmethod
    def balanced(cls, world_size: int) -> ShardMap:
        """Creates a map in which each rank owns a contiguous range of partitions of about equal size.

        Args:
            world_size: number of ranks, 1 to 4,096.

        Raises:
            InvalidArgumentError: `world_size` is out of range.

        Examples:
            >>> from sparring.contracts import ShardMap
            >>> len(ShardMap.balanced(4).partitions_of(rank=0))
            1024
        """
        _check_world_size(world_size)
        partitions = np.arange(NUM_PARTITIONS, dtype=np.int64)
        return cls((partitions * world_size // NUM_PARTITIONS).astype(np.int32), world_size)

    def partitions_of(self, rank: int) -> npt.NDArray[np.int64]:
        """Returns the partitions that a rank owns, ascending.

        Args:
            rank: ``0 <= rank < world_size``.
        """
        return np.flatnonzero(self.owners == rank)

    def shard_of(self, rank: int, *, is_replicated: bool = False) -> Shard:
        """Returns the shard that a rank stores.

        Args:
            rank: ``0 <= rank < world_size``.
            is_replicated: whether every rank stores all rows; the shard then contains all partitions.
        """
        partitions = np.arange(NUM_PARTITIONS) if is_replicated else self.partitions_of(rank)
        return Shard(rank, self.world_size, partitions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardMap):
            return NotImplemented
        return self.world_size == other.world_size and np.array_equal(self.owners, other.owners)

    def __hash__(self) -> int:
        return hash((self.world_size, self.owners.tobytes()))


@dataclass(frozen=True, eq=False, slots=True)
class KeyOwners:
    """Checks whether keys of a sharded table belong to this rank.

    Args:
        table: name of the table.
        rank: this rank.
        owners: ``(4096,)`` int32, the rank that owns each partition.
    """

    table: str
    rank: int
    owners: npt.NDArray[np.int32]

    def are_own(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Returns a mask ``(n,)``: whether this rank owns each key."""
        own: npt.NDArray[np.bool_] = self.owners[_native.partition(keys)] == self.rank
        return own

    def check_written(self, keys: npt.NDArray[np.int64]) -> None:
        """Checks that this rank owns all keys of a write, before any row changes.

        Raises:
            InvalidArgumentError: another rank owns a key. The attributes `key` and `owner` contain the
                first such key and the rank that owns it.
        """
        self._check(
            keys,
            "write",
            "no row was changed. Call container.assign(table, keys, embeddings) on all ranks, which "
            "sends each row to its owner; or write each key on the rank that owns it: "
            "container.layout(table).owners[sparring.kernels.functions.partition(keys)]",
        )

    def check_saved(self, keys: npt.NDArray[np.int64]) -> None:
        """Checks that this rank owns all keys that it saves. Otherwise a snapshot could contain two
        rows for one key.

        Raises:
            InvalidArgumentError: see `check_written`.
        """
        self._check(
            keys,
            "save",
            "nothing was saved. Remove the keys from this rank with container.storage(table).erase, "
            "write them on the rank that owns them, and save again",
        )

    def _check(self, keys: npt.NDArray[np.int64], verb: str, remedy: str) -> None:
        are_own = self.are_own(keys)
        if are_own.all():
            return
        foreign = keys[~are_own]
        key, owner = int(foreign[0]), int(self.owners[_native.partition(foreign[:1])[0]])
        raise InvalidArgumentError(
            f"table {self.table!r}: rank {self.rank} cannot {verb} these {len(keys)} rows, because "
            f"{len(foreign)} belong to other ranks, for example key {key} to rank {owner}; {remedy}",
            table=self.table,
            rank=self.rank,
            key=key,
            owner=owner,
        )


def _check_world_size(world_size: object) -> None:
    if not is_whole(world_size) or not 1 <= int(world_size) <= NUM_PARTITIONS:  # type: ignore[call-overload]
        raise InvalidArgumentError(
            f"shard map: world_size must be a whole number from 1 to {NUM_PARTITIONS}, found "
            f"{world_size!r}"
        )
