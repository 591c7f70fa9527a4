"""Contract of planners, which choose the sharding of the tables of a job.

Planners are registered with the hook `sparring_register_planners`. The planner named ``auto`` creates
the plan for ``plan="auto"`` and reads plan files. Core does not contain a planner; if none is
installed, ``auto`` means ``row_wise``.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparring.contracts.ranks.layout import ShardingPlan
from sparring.contracts.tables.table import TableConfig

__all__ = ["FeatureWorkload", "PlanResult", "PlanRequest", "TableWorkload"]


@dataclass(frozen=True, slots=True)
class FeatureWorkload:
    """The lookups of a feature in its table.

    Args:
        pooling: pooling of the embeddings of a bag, ``sum`` or ``mean``; None without pooling.
        ids: average number of ids per sample; None if it is unknown.
        is_weighted: whether each id has a weight.
    """

    pooling: str | None = "sum"
    ids: float | None = None
    is_weighted: bool = False


@dataclass(frozen=True, slots=True)
class TableWorkload:
    """A table, and the properties of its use that are known before training begins.

    Args:
        table: the declaration.
        features: features that look up ids in the table; empty for one feature with unknown properties.
        rows: maximum number of rows of its storage, if a user specified it; None if it is unknown.
        method: name of the update method or native optimizer, such as ``adagrad``, or None.
        kinds: allowed sharding kinds; empty allows all.
        supports_replication: whether every rank may keep all rows: each rank has a separate storage
            that does not evict, and that was not already opened for a part of the rows.
        supports_column_split: whether ranks may keep blocks of columns: the update method is known and
            updates each element independently of the rest of its row, and storage and admission
            support it.
        is_in_memory: whether rows are in the memory of the rank's machine.
        supports_pooling: whether owners may pool bags: all lookups are pooled, and their modules
            support it.
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
        tables: the tables of the job.
        world_size: number of ranks; 0 if a plan file is checked before a job starts.
        ranks_per_node: number of consecutive ranks on each node.
        samples: number of samples per batch and rank; None if it is unknown.
        memory_bytes: memory for the tables of a rank; None uses a rank's share of this machine.
        near_gbit: bandwidth of a rank within its node in Gbit/s; None if it is unknown.
        far_gbit: bandwidth of a node to other nodes in Gbit/s; None if it is unknown.
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
    """Result of a planner.

    Args:
        sharding: the plan.
        summary: lines for users with the decisions, the quality of the plan and the assumptions.
        assumptions: one sentence per assumption of the planner.
    """

    sharding: ShardingPlan
    summary: str = ""
    assumptions: tuple[str, ...] = ()
