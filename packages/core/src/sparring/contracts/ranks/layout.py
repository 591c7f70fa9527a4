"""Layouts, which determine the ranks that store the rows of a table, and the `ShardingPlan`, by
which users choose these ranks.

A sharding kind creates the layout of a table. Steps, saves and loads only read the layout.

    kind                 owner of a partition                rank that stores a row
    row_wise             from the shard map of the job       the owner
    table_wise           one rank owns all partitions        the owner
    table_row_wise       equal ranges over a node's ranks    the owner
    data_parallel        from the shard map of the job       every rank
    column_wise          one rank per block of columns       each owner stores its columns
    table_column_wise    one rank of a node per block        each owner stores its columns
    grid                 per block of columns, equal ranges  each owner stores its columns
                         over a node's ranks

A layout has one owner per partition, or one owner per partition and block of columns.
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
"""Form in which the rows of bags are sent to the requesting rank. ``rows``: one row per key.
``pooled``: owners pool the rows, and send one row per bag. Lookups without pooling always use
``rows``."""


@dataclass(frozen=True, eq=False)
class Layout(ShardMap):
    """The shard map of one table.

    Args:
        owners: ``(4096,)`` int32, the rank that owns each partition; ``(blocks, 4096)`` if columns
            are split. A rank may own no partition.
        world_size: number of ranks.
        kind: the sharding kind that created the layout.
        is_replicated: whether every rank stores all rows; `owners` then has no effect.
        transfer: form in which rows of bags are sent; not part of the digest.
        columns: boundaries of the blocks of columns, ascending from 0, with equal widths; empty if
            columns are not split. If all blocks have the same owners, they become one block.

    Raises:
        InvalidArgumentError: `owners` has the wrong shape, or contains a number that is not a rank; or
            `columns` is not ascending, or does not match the blocks.
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
                "layout: columns must ascend from 0 in blocks of equal width, such as (0, 16, 32), found "
                f"{columns}"
            )
        if owners.ndim != 2 or len(owners) != len(columns) - 1 or self.is_replicated:
            raise InvalidArgumentError(
                f"layout: {len(columns) - 1} blocks of columns need owners of shape "
                f"{(len(columns) - 1, NUM_PARTITIONS)} and a layout that is not replicated, found shape "
                f"{owners.shape}"
            )
        checked = np.stack([ShardMap(each, self.world_size).owners for each in owners])
        if (checked == checked[0]).all():
            checked, columns = checked[0], ()
        checked.flags.writeable = False
        object.__setattr__(self, "owners", checked)
        object.__setattr__(self, "columns", columns)

    @property
    def num_blocks(self) -> int:
        """Number of blocks of columns; 1 if columns are not split."""
        return max(1, len(self.columns) - 1)

    def block(self, number: int) -> Layout:
        """Returns the layout of one block of columns, as if the block was a table of its own.

        Args:
            number: number of the block, from 0. The layout must have more than one block.
        """
        return Layout(self.owners[number], self.world_size, self.kind, transfer=self.transfer)

    def partitions_of(self, rank: int) -> npt.NDArray[np.int64]:
        """Returns the partitions of which a rank owns at least one block of columns, ascending.

        Args:
            rank: ``0 <= rank < world_size``.
        """
        return np.flatnonzero((np.atleast_2d(self.owners) == rank).any(axis=0))

    @cached_property
    def digest(self) -> str:
        """Hash of the layout; equal for layouts that store each row on the same ranks."""
        owners = b"replicated" if self.is_replicated else self.owners.astype("<i4").tobytes()
        if self.columns:
            owners += repr(self.columns).encode()
        return xxhash.xxh3_64_hexdigest(owners, seed=self.world_size)

    def shard_of(self, rank: int, *, is_replicated: bool = False) -> Shard:
        """Returns the shard that a rank stores.

        Args:
            rank: ``0 <= rank < world_size``.
            is_replicated: whether to return all partitions although the layout is not replicated.
        """
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
    """Input of a sharding kind: the table and the available ranks.

    Args:
        table: the declaration.
        ranks: the ranks that the plan names, ascending, or in the order of the blocks of columns;
            empty: the kind chooses, with the same result on all ranks.
        shard_map: the shard map of the job, which is the default for the owners.
        ranks_per_node: number of consecutive ranks on each node.
        columns: number of blocks of columns in the plan; None: the kind chooses.
    """

    table: TableConfig
    ranks: tuple[int, ...]
    shard_map: ShardMap
    ranks_per_node: int = 1
    columns: int | None = None


@dataclass(frozen=True, slots=True)
class TableSharding:
    """Sharding of one table in a plan.

    Args:
        kind: a sharding kind: ``row_wise``, ``table_wise``, ``table_row_wise``, ``data_parallel``,
            ``column_wise``, ``table_column_wise``, ``grid``, or one of a plugin.
        ranks: the ranks that store the table; empty: the kind chooses. For kinds that split
            columns, the ranks of the first block precede the ranks of the second block, and so
            on. The ranks of a block are in the order of its ranges of rows.
        transfer: ``rows``, or ``pooled`` if owners pool bags and return one row per bag.
        columns: number of blocks of columns of equal width; None: the kind chooses.

    Raises:
        InvalidArgumentError: `ranks` are not whole numbers of at least 0, or repeat without blocks of
            columns; `columns` is not a positive whole number; or `transfer` is unknown.
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
                f"sharding plan: columns must be a number of blocks of at least 1, found "
                f"{self.columns!r}; omit it to let the kind choose"
            )
        ranks, is_divided = tuple(self.ranks), self.columns is not None and self.columns > 1
        are_ranks = all(is_whole(each) and each >= 0 for each in ranks)
        are_repeated = not is_divided and len(set(ranks)) < len(ranks)
        if not isinstance(self.kind, str) or not are_ranks or are_repeated:
            raise InvalidArgumentError(
                "sharding plan: a table needs a kind and distinct ranks of at least 0, for example "
                f"TableSharding('table_wise', [1]); found {self.kind!r} and {ranks}"
            )
        # The order matters only for kinds with blocks of columns.
        object.__setattr__(self, "ranks", tuple(map(int, ranks)))


@dataclass(frozen=True)
class ShardingPlan:
    """Sharding of the tables of a job.

    Tables that the plan does not name are ``row_wise``, or replicated if their placement is
    ``replicated``.

    Args:
        tables: table → `TableSharding`, or the name of a kind.

    Raises:
        InvalidArgumentError: a value is neither.

    Examples:
        >>> from sparring.contracts import ShardingPlan, TableSharding
        >>> plan = ShardingPlan({"user": "table_wise", "item": TableSharding("column_wise", [0, 1])})
        >>> plan.sharding_of("user").kind
        'table_wise'
    """

    tables: Mapping[str, TableSharding | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.tables, Mapping):
            raise InvalidArgumentError(
                "sharding plan: must be a mapping of tables to kinds or TableSharding, found "
                f"{type(self.tables).__name__}; for a file of `sparring plan`, pass "
                "read_plan(path).sharding(num_ranks)"
            )
        made = {
            table: TableSharding(each) if isinstance(each, str) else each
            for table, each in self.tables.items()
        }
        for table, each in made.items():
            if not isinstance(each, TableSharding):
                raise InvalidArgumentError(
                    f"sharding plan: the value of table {table!r} must be the name of a kind or a "
                    f"TableSharding, found {each!r}",
                    table=table,
                )
        object.__setattr__(self, "tables", made)

    def sharding_of(self, table: str) -> TableSharding | None:
        """Returns the sharding of a table, or None if the plan does not name it.

        Args:
            table: name of the table.
        """
        found = self.tables.get(table)
        assert not isinstance(found, str)
        return found
