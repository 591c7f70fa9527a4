"""Which rank owns which partition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError
from sparring.storage.arguments import as_array, is_whole

__all__ = ["NUM_PARTITIONS", "Shard", "ShardMap"]

NUM_PARTITIONS = 4096
"""Fixed for ever: snapshots name their files by partition."""


@dataclass(frozen=True, eq=False, slots=True)
class Shard:
    """The part of a table that one rank keeps.

    Args:
        rank: whose it is.
        world_size: of how many ranks.
        partitions: ``(n,)`` int64, ascending: those whose rows it keeps. All 4,096 of a
            replicated table, and of a table in a world of one.
    """

    rank: int
    world_size: int
    partitions: npt.NDArray[np.int64]

    @property
    def is_whole(self) -> bool:
        """Whether this rank keeps every row of the table."""
        return len(self.partitions) == NUM_PARTITIONS


@dataclass(frozen=True, eq=False)
class ShardMap:
    """Partition → rank.

    The partition of a key is the top 12 bits of its 64-bit hash (`sparring.kernels.partition`), so a
    key's partition never changes, whatever the world size.

    Args:
        owners: ``(4096,)`` int32, the rank that owns each partition.
        world_size: ranks; each owns between floor and ceiling of 4096 / world_size partitions.

    Raises:
        InvalidArgumentError: owners that are no ranks of this world, or too few or many of them.
    """

    owners: npt.NDArray[np.int32]
    world_size: int

    def __post_init__(self) -> None:
        _check_world_size(self.world_size)
        given = as_array(self.owners, "shard map: owners")
        if given.shape != (NUM_PARTITIONS,):
            raise InvalidArgumentError(
                f"shard map: needs an owner for each of {NUM_PARTITIONS} partitions, found shape "
                f"{given.shape}; make one: ShardMap.balanced(world_size)"
            )
        if given.dtype.kind not in "iu":
            raise InvalidArgumentError(
                f"shard map: owners must be ranks, whole numbers, found dtype {given.dtype}; "
                "convert them to int32"
            )
        # Before they become int32, which would cut them.
        if given.min() < 0 or given.max() >= self.world_size:
            raise InvalidArgumentError(
                f"shard map: owners must be ranks 0 to {self.world_size - 1}, found "
                f"{int(given.min())} to {int(given.max())}; give the world size that they are of"
            )
        owners = given.astype(np.int32)
        owners.flags.writeable = False
        object.__setattr__(self, "owners", owners)

    @classmethod
    def balanced(cls, world_size: int) -> ShardMap:
        """The map of a fresh start: contiguous ranges of partitions, as equal as can be."""
        _check_world_size(world_size)
        partitions = np.arange(NUM_PARTITIONS, dtype=np.int64)
        return cls((partitions * world_size // NUM_PARTITIONS).astype(np.int32), world_size)

    def resized(self, world_size: int) -> ShardMap:
        """The map for another world size that moves as few partitions as possible.

        Ranks that stay keep what they own up to their new share; only the surplus, and the
        partitions of ranks that are gone, change hands.
        """
        _check_world_size(world_size)
        owners = self.owners.copy()
        counts = np.bincount(owners, minlength=max(world_size, self.world_size))[:world_size]
        small, num_large = divmod(NUM_PARTITIONS, world_size)
        shares = np.full(world_size, small)
        # The larger shares go to those who own most, so that they give up least.
        shares[np.argsort(-counts, kind="stable")[:num_large]] += 1
        homeless = [np.flatnonzero(owners >= world_size)]
        for rank in np.flatnonzero(counts > shares):
            homeless.append(np.flatnonzero(owners == rank)[shares[rank] :])
        missing = np.maximum(shares - counts, 0)
        moved = np.concatenate(homeless)
        owners[moved] = np.repeat(np.arange(world_size, dtype=np.int32), missing)
        return ShardMap(owners, world_size)

    def partitions_of(self, rank: int) -> npt.NDArray[np.int64]:
        """The partitions that `rank` owns, ascending."""
        return np.flatnonzero(self.owners == rank)

    def shard_of(self, rank: int, *, is_replicated: bool = False) -> Shard:
        """What `rank` keeps of a table."""
        partitions = np.arange(NUM_PARTITIONS) if is_replicated else self.partitions_of(rank)
        return Shard(rank, self.world_size, partitions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardMap):
            return NotImplemented
        return self.world_size == other.world_size and np.array_equal(self.owners, other.owners)

    def __hash__(self) -> int:
        return hash((self.world_size, self.owners.tobytes()))


def _check_world_size(world_size: object) -> None:
    if not is_whole(world_size) or not 1 <= int(world_size) <= NUM_PARTITIONS:  # type: ignore[call-overload]
        raise InvalidArgumentError(
            f"shard map: world_size must be a whole number from 1 to {NUM_PARTITIONS}, found "
            f"{world_size!r}"
        )
