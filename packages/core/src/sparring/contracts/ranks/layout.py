"""A table's layout: the ranks that own its rows. And how a user asks for one, by a `ShardingPlan`.

Sharding kinds are generators of layouts; all that runs a step, a save or a load reads the layout alone.

    kind                 owner of a partition               who keeps the row
    row_wise             that of the job's shard map        its owner
    table_wise           one rank                           that rank
    table_row_wise       ranks of a node, equal ranges      its owner
    data_parallel        that of the job's shard map        every rank
    column_wise          one rank for each block of columns the blocks' owners, each its columns
    table_column_wise    the same, of the ranks of a node   the blocks' owners, each its columns
    grid                 for each block a node's ranks,     the blocks' owners, each its columns
                         equal ranges

A layout has one owner for each partition, or one for each partition of each block of columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import xxhash

from sparring.contracts.ranks.shard_map import NUM_PARTITIONS, Shard, ShardMap
from sparring.contracts.storage.results import is_whole
from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError

__all__ = ["Layout", "LayoutRequest", "ShardingPlan", "TableSharding", "Transfer"]

Transfer = Literal["rows", "pooled"]
"""How rows of a batch's bags travel: as ``rows`` of keys; or, ``pooled`` by their owners, as one row for
each bag. Whatever is no bag goes by rows."""


@dataclass(frozen=True, eq=False)
class Layout(ShardMap):
    """The shard map of one table.

    Args:
        owners: ``(4096,)`` int32, the rank that owns each partition; ``(blocks, 4096)`` where columns
            are divided. Ranks may own none.
        world_size: ranks.
        kind: the sharding kind that made it.
        is_replicated: every rank keeps all rows; owners are then of no effect.
        transfer: how rows of bags travel; no part of the digest.
        columns: where blocks begin, ascending from 0, and where the last one ends, all equally wide;
            empty: all columns have one owner. Blocks that all have the same owners become one.

    Raises:
        InvalidArgumentError: owners that are no ranks of this world, or too few or many of them; columns
            that are not ascending, or are not those of the blocks.
    """

    kind: str = "row_wise"
    is_replicated: bool = False
    transfer: Transfer = "rows"
    columns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.columns:
            super().__post_init__()
            return
        owners, columns = np.asarray(self.owners), tuple(self.columns)
        are_ascending = all(is_whole(each) for each in columns) and all(
            begin < end for begin, end in itertools.pairwise(columns)
        )
        widths = (
            {end - begin for begin, end in itertools.pairwise(columns)} if are_ascending else ()
        )
        if len(widths) != 1 or columns[0] != 0:
            raise InvalidArgumentError(
                "layout: columns must ascend from 0 to the end of the last block, all blocks equally "
                f"wide, found {columns}"
            )
        if owners.ndim != 2 or len(owners) != len(columns) - 1 or self.is_replicated:
            raise InvalidArgumentError(
                f"layout: {len(columns) - 1} blocks of columns need owners of shape "
                f"{(len(columns) - 1, NUM_PARTITIONS)}, and no replicas; found {owners.shape}"
            )
        checked = np.stack([ShardMap(each, self.world_size).owners for each in owners])
        if (checked == checked[0]).all():
            checked, columns = checked[0], ()
        checked.flags.writeable = False
        object.__setattr__(self, "owners", checked)
        object.__setattr__(self, "columns", columns)

    @property
    def num_blocks(self) -> int:
        """Blocks of columns; 1 where columns are not divided."""
        return max(1, len(self.columns) - 1)

    def block(self, number: int) -> Layout:
        """The layout of one block of columns as of a table of its own."""
        return Layout(self.owners[number], self.world_size, self.kind, transfer=self.transfer)

    def partitions_of(self, rank: int) -> npt.NDArray[np.int64]:
        """The partitions of which `rank` owns all columns or a block, ascending."""
        return np.flatnonzero((np.atleast_2d(self.owners) == rank).any(axis=0))

    @cached_property
    def digest(self) -> str:
        """Equal for layouts that keep each row on the same ranks, whatever kind made them."""
        owners = b"replicated" if self.is_replicated else self.owners.astype("<i4").tobytes()
        if self.columns:
            owners += repr(self.columns).encode()
        return xxhash.xxh3_64_hexdigest(owners, seed=self.world_size)

    def shard_of(self, rank: int, *, is_replicated: bool = False) -> Shard:
        """Shard of the table that `rank` keeps."""
        return super().shard_of(rank, is_replicated=self.is_replicated or is_replicated)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return (self.world_size, self.digest) == (other.world_size, other.digest)

    def __hash__(self) -> int:
        return hash((self.world_size, self.digest))

    def __str__(self) -> str:
        return f"{self.kind} {self.digest}{', pooled' if self.transfer == 'pooled' else ''}"


@dataclass(frozen=True, slots=True)
class LayoutRequest:
    """Input of a sharding kind: the table, and the ranks there are.

    Args:
        table: as declared.
        ranks: that the plan names, ascending, or in the order of column blocks; empty: the kind
            chooses, alike on all ranks.
        shard_map: of the job: the owner of each partition where nothing else is said.
        ranks_per_node: node n has the ranks from n times this number on.
        columns: blocks of columns that the plan asks for; None: the kind chooses.
    """

    table: TableConfig
    ranks: tuple[int, ...]
    shard_map: ShardMap
    ranks_per_node: int = 1
    columns: int | None = None


@dataclass(frozen=True, slots=True)
class TableSharding:
    """The part of a plan that is about one table.

    Args:
        kind: a sharding kind: ``row_wise``, ``table_wise``, ``table_row_wise``, ``data_parallel``,
            ``column_wise``, ``table_column_wise``, ``grid``, or one of a plugin.
        ranks: which ranks it is for; empty: the kind chooses. Of kinds that divide columns they are
            those of the blocks in order, and of the ranges of rows of each block.
        transfer: ``rows``, or ``pooled``: owners pool bags, and return one row for each.
        columns: blocks of columns, all equally wide; None: the kind chooses.

    Raises:
        InvalidArgumentError: ranks that are no whole numbers from 0 on, or are given twice without
            blocks of columns; columns that are no whole number from 1 on; or another transfer.
    """

    kind: str
    ranks: tuple[int, ...] = ()
    transfer: Transfer = "rows"
    columns: int | None = None

    def __post_init__(self) -> None:
        if self.transfer not in get_args(Transfer):
            raise InvalidArgumentError(
                f"sharding plan: transfer must be 'rows' or 'pooled', found {self.transfer!r}"
            )
        if self.columns is not None and (not is_whole(self.columns) or self.columns < 1):
            raise InvalidArgumentError(
                f"sharding plan: columns is a number of blocks from 1 on, found {self.columns!r}"
            )
        ranks, is_divided = tuple(self.ranks), self.columns is not None and self.columns > 1
        are_ranks = all(is_whole(each) and each >= 0 for each in ranks)
        are_repeated = not is_divided and len(set(ranks)) < len(ranks)
        if not isinstance(self.kind, str) or not are_ranks or are_repeated:
            raise InvalidArgumentError(
                "sharding plan: a table has a kind and different ranks from 0 on, as in "
                f"TableSharding('table_wise', [1]); found {self.kind!r} and {ranks}"
            )
        # In the order of blocks; those of a kind that has none are a set.
        object.__setattr__(self, "ranks", tuple(map(int, ranks)))


@dataclass(frozen=True)
class ShardingPlan:
    """How tables are sharded; those that are not named are ``row_wise``, or replicated by placement.

    Args:
        tables: table → its sharding, or the name of a kind.

    Raises:
        InvalidArgumentError: something else in place of a sharding.
    """

    tables: Mapping[str, TableSharding | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.tables, Mapping):
            raise InvalidArgumentError(
                "sharding plan: expected table → kind or TableSharding, found "
                f"{type(self.tables).__name__}; of a file of sparring plan give "
                "read_plan(path).sharding(num_ranks)"
            )
        made = {
            table: TableSharding(each) if isinstance(each, str) else each
            for table, each in self.tables.items()
        }
        for table, each in made.items():
            if not isinstance(each, TableSharding):
                raise InvalidArgumentError(
                    f"sharding plan: table {table!r} needs the name of a kind or a TableSharding, "
                    f"found {each!r}",
                    table=table,
                )
        object.__setattr__(self, "tables", made)

    def sharding_of(self, table: str) -> TableSharding | None:
        """The part about a table; None: the plan does not name it."""
        found = self.tables.get(table)
        assert not isinstance(found, str)
        return found
