"""Rows, memory and predicted time of each rank of a plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparring_plan.planning.plan import Plan
from sparring_plan.planning.search.placement import Placement

__all__ = ["RankSummary", "summarize_ranks"]


@dataclass(frozen=True, slots=True)
class RankSummary:
    """What a rank stores, and how long it takes for a step."""

    rank: int
    rows: int
    """Number of rows at the horizon. A row with several column blocks counts once per block."""
    memory_bytes: dict[str, int]
    """Kind of memory → bytes."""
    ms: float
    """Time per step of the resource that the rank uses longest."""


def summarize_ranks(plan: Plan, placement: Placement) -> list[RankSummary]:
    """Returns a summary of each rank, in rank order."""
    rows = np.zeros(plan.ranks)
    for table in plan.tables.values():
        ranks = range(plan.ranks) if table.ranks == "all" else table.ranks
        is_replicated = table.kind == "data_parallel"
        # Each column block contains all rows, which its shards divide evenly.
        share = 1.0 if is_replicated else table.columns / len(ranks)
        for rank in ranks:
            rows[rank] += table.rows * share
    kinds = placement.options.memories
    return [
        RankSummary(
            rank,
            round(rows[rank]),
            {kind: int(held) for kind, held in zip(kinds, placement.memory[rank], strict=True)},
            float(placement.load[rank].max() * 1e3),
        )
        for rank in range(plan.ranks)
    ]
