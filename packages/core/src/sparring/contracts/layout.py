"""A table's layout: the ranks that own its rows. And how a user asks for one, by a `ShardingPlan`.

Sharding kinds are generators of layouts; all that runs a step, a save or a load reads the layout alone.

    kind              owner of a partition               who keeps the row
    row_wise          that of the job's shard map        its owner
    table_wise        one rank                           that rank
    table_row_wise    ranks of a node, equal ranges      its owner
    data_parallel     that of the job's shard map        every rank

A layout has one owner for each partition. Blocks of columns will be a second axis of `owners`; nothing
here assumes more of an owner than that it is found by partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

import xxhash

from sparring.contracts.results import is_whole
from sparring.contracts.shard_map import Shard, ShardMap
from sparring.contracts.table import TableConfig
from sparring.errors import InvalidArgumentError

__all__ = ["Layout", "LayoutRequest", "ShardingPlan", "TableSharding", "Transfer"]

Transfer = Literal["rows", "pooled"]
"""How rows of a batch's bags travel: as ``rows`` of keys; or, ``pooled`` by their owners, as one row for
each bag. Whatever is no bag goes by rows."""


@dataclass(frozen=True, eq=False)
class Layout(ShardMap):
    """The shard map of one table.

    Args:
        owners: ``(4096,)`` int32, the rank that owns each partition. Ranks may own none.
        world_size: ranks.
        kind: the sharding kind that made it.
        is_replicated: every rank keeps all rows; owners are then of no effect.
        transfer: how rows of bags travel; no part of the digest.

    Raises:
        InvalidArgumentError: owners that are no ranks of this world, or too few or many of them.
    """

    kind: str = "row_wise"
    is_replicated: bool = False
    transfer: Transfer = "rows"

    @cached_property
    def digest(self) -> str:
        """Equal for layouts that keep each row on the same ranks, whatever kind made them."""
        owners = b"replicated" if self.is_replicated else self.owners.astype("<i4").tobytes()
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
        ranks: that the plan names, ascending; empty: the kind chooses, alike on all ranks.
        shard_map: of the job: the owner of each partition where nothing else is said.
        ranks_per_node: node n has the ranks from n times this number on.
    """

    table: TableConfig
    ranks: tuple[int, ...]
    shard_map: ShardMap
    ranks_per_node: int = 1


@dataclass(frozen=True, slots=True)
class TableSharding:
    """The part of a plan that is about one table.

    Args:
        kind: a sharding kind: ``row_wise``, ``table_wise``, ``table_row_wise``, ``data_parallel``, or
            one of a plugin.
        ranks: which ranks it is for; empty: the kind chooses.
        transfer: ``rows``, or ``pooled``: owners pool bags, and return one row for each.

    Raises:
        InvalidArgumentError: ranks that are no whole numbers from 0 on, or are given twice; or
            another transfer.
    """

    kind: str
    ranks: tuple[int, ...] = ()
    transfer: Transfer = "rows"

    def __post_init__(self) -> None:
        if self.transfer not in get_args(Transfer):
            raise InvalidArgumentError(
                f"sharding plan: transfer must be 'rows' or 'pooled', found {self.transfer!r}"
            )
        ranks = tuple(self.ranks)
        are_ranks = all(is_whole(each) and each >= 0 for each in ranks)
        if not isinstance(self.kind, str) or not are_ranks or len(set(ranks)) < len(ranks):
            raise InvalidArgumentError(
                "sharding plan: a table has a kind and different ranks from 0 on, as in "
                f"TableSharding('table_wise', [1]); found {self.kind!r} and {ranks}"
            )
        object.__setattr__(self, "ranks", tuple(sorted(map(int, ranks))))


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
