"""Request and answer of a planner: the tables and ranks of a job, and a sharding plan of them.

A planner joins by the hook `sparring_register_planners`. That of the name ``auto`` makes the plan where
a user writes ``plan="auto"``, and reads plan files. Core has none: without one, ``auto`` is ``row_wise``.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparring.contracts.ranks.layout import ShardingPlan
from sparring.contracts.tables.table import TableConfig

__all__ = ["FeatureWorkload", "PlanResult", "PlanRequest", "TableWorkload"]


@dataclass(frozen=True, slots=True)
class FeatureWorkload:
    """The ids that a feature looks up in its table.

    Args:
        pooling: how the embeddings of a bag become one: ``sum``, ``mean``; None: they do not.
        ids: of a sample, on average; None: unknown.
        is_weighted: each id has a weight.
    """

    pooling: str | None = "sum"
    ids: float | None = None
    is_weighted: bool = False


@dataclass(frozen=True, slots=True)
class TableWorkload:
    """A table, and what is known of its use before training begins.

    Args:
        table: as declared.
        features: that look up in it; none: one, of which nothing is known.
        rows: the most that its storage may hold, where a user said so; None: unknown.
        method: the update method or native optimizer, ``adagrad``; None: unknown.
        kinds: sharding kinds that it may have; empty: any.
        supports_replication: every rank may keep all rows: the storage evicts none, each rank has one,
            and it was not given open for a part of the rows.
        supports_column_split: ranks may keep blocks of its columns: the update method is known and
            moves each element without the others of its row, and storage and admission agree on keys.
        is_in_memory: rows are in the memory of the rank's machine.
        supports_pooling: owners may pool its bags: all lookups are of bags, and their modules can.
    """

    table: TableConfig
    features: tuple[FeatureWorkload, ...] = ()
    rows: int | None = None
    method: str | None = None
    kinds: tuple[str, ...] = ()
    supports_replication: bool = True
    supports_column_split: bool = False
    is_in_memory: bool = True
    supports_pooling: bool = False


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Input of a planner.

    Args:
        tables: of the job.
        world_size: ranks; 0: unknown, where a plan file is checked before a job begins.
        ranks_per_node: node n has the ranks from n times this number on.
        samples: of a rank's batch; None: unknown.
        memory_bytes: that tables of a rank may take; None: a rank's share of this machine.
        near_gbit: Gbit/s of a rank within its node; None: unknown.
        far_gbit: Gbit/s of a node to others; None: unknown.
    """

    tables: tuple[TableWorkload, ...]
    world_size: int
    ranks_per_node: int = 1
    samples: int | None = None
    memory_bytes: int | None = None
    near_gbit: float | None = None
    far_gbit: float | None = None


@dataclass(frozen=True, slots=True)
class PlanResult:
    """A planner's answer.

    Args:
        sharding: the plan.
        summary: lines for people: what was decided, how good it is, and what was assumed.
        assumed: a sentence on each thing that the planner had to assume.
    """

    sharding: ShardingPlan
    summary: str = ""
    assumptions: tuple[str, ...] = ()
