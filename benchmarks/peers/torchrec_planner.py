"""TorchRec's planner and ours on the same search space: TorchRec enumerates options and rates the plans.

Our search uses TorchRec's estimates of times and bytes as arrays, but none of its plans.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import (
    EmbeddingShardingPlanner,
    ParameterConstraints,
    Topology,
)
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.planners import to_sharding_plan, validate_rank_assignment
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import PlannerError, ShardingOption
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from benchmarks.planning_cases import Case
from sparring_plan.planning.costs.costs import Options, Shape, Span
from sparring_plan.planning.search.search import search

RANKS_PER_NODE = 8
_RESERVED = 0.15
_SPANS = {
    "row_wise": Span.ALL,
    "data_parallel": Span.ALL,
    "table_wise": Span.RANKS,
    "column_wise": Span.RANKS,
    "table_column_wise": Span.WITHIN,
    "table_row_wise": Span.NODES,
}


@dataclass(frozen=True)
class Outcome:
    """A plan of a case.

    Args:
        milliseconds: time of a step by TorchRec's rater; infinite if no plan was found.
        seconds: time of the search, without the enumeration of options.
        gap: gap to our proven bound; NaN for TorchRec, which proves none.
    """

    milliseconds: float
    seconds: float
    gap: float = float("nan")


class Problem:
    """A case in TorchRec's data structures; `enumerating` is the time of its enumeration of options."""

    def __init__(self, case: Case) -> None:
        configs, self._constraints = [], {}
        for index, table in enumerate(case.tables):
            name = f"table_{index:04}"
            features = [f"{name}_{place}" for place in range(len(table.ids))]
            configs.append(
                EmbeddingBagConfig(
                    name=name,
                    num_embeddings=table.rows,
                    embedding_dim=table.dim,
                    feature_names=features,
                )
            )
            self._constraints[name] = ParameterConstraints(
                pooling_factors=list(table.ids), compute_kernels=list(case.kernels) or None
            )
        self._module = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        self._topology = Topology(
            world_size=case.ranks,
            local_world_size=min(RANKS_PER_NODE, case.ranks),
            compute_device="cuda",
            hbm_cap=int(case.gibibytes * 2**30),
        )
        self._batch = case.batch
        self._sharders: list[Any] = [EmbeddingBagCollectionSharder()]
        self._reserved = HeuristicalStorageReservation(percentage=_RESERVED).reserve(
            self._topology, self._batch, self._module, self._sharders, self._constraints
        )
        begin = time.perf_counter()
        self._space = self._enumerator().enumerate(self._module, self._sharders)
        self.enumerating = time.perf_counter() - begin

    def _enumerator(self) -> EmbeddingEnumerator:
        return EmbeddingEnumerator(self._topology, self._batch, constraints=self._constraints)

    def theirs(self, limit: int | None = None) -> Outcome:
        """Returns TorchRec's plan from its default proposers and partitioner, with a time limit."""
        planner = EmbeddingShardingPlanner(
            topology=self._topology,
            batch_size=self._batch,
            enumerator=self._enumerator(),
            storage_reservation=HeuristicalStorageReservation(percentage=_RESERVED),
            constraints=self._constraints,
            stats=[],
            debug=False,
            timeout_seconds=limit,
        )
        begin = time.perf_counter()
        try:
            planner.plan(self._module, self._sharders)
        except PlannerError:
            return Outcome(float("inf"), time.perf_counter() - begin - self.enumerating)
        seconds = time.perf_counter() - begin - self.enumerating
        assert planner._best_plan is not None
        return Outcome(self._rate(planner._best_plan), seconds)

    def ours(self) -> Outcome:
        """Returns our plan: a search over arrays of TorchRec's estimates."""
        begin = time.perf_counter()
        options, chosen = _options(self._space, self._reserved)
        found = search(options)
        seconds = time.perf_counter() - begin
        if found is None:
            return Outcome(float("inf"), seconds)
        plan = []
        for table, option in enumerate(found.placement.option):
            taken = copy.copy(chosen[int(option)])
            taken.shards = [copy.copy(shard) for shard in taken.shards]
            ranks = found.placement.ranks(table)
            for index, shard in enumerate(taken.shards):
                shard.rank = int(ranks[index]) if len(ranks) else index
            plan.append(taken)
        rated = self._rate(plan)
        return Outcome(rated, seconds, rated / (found.bound_seconds * 1e3) - 1)

    def _rate(self, plan: Sequence[ShardingOption]) -> float:
        """Returns the milliseconds of a plan by TorchRec's rater; the plan must fit and be valid."""
        left = [copy.copy(device.storage) for device in self._reserved.devices]
        for option in plan:
            for shard in option.shards:
                assert shard.rank is not None
                assert shard.storage is not None
                assert shard.storage.fits_in(left[shard.rank]), f"{option.name} does not fit"
                left[shard.rank] -= shard.storage
        validate_rank_assignment(to_sharding_plan(list(plan), self._topology), self._topology)
        return float(NoopPerfModel(self._topology).rate(list(plan)))


def _options(space: list[ShardingOption], reserved: Topology) -> tuple[Options, list[Any]]:
    """Converts TorchRec's options to our arrays; returns also the option that each of ours is."""
    ordered = sorted(space, key=lambda each: each.name)
    names = sorted({each.name for each in ordered})
    index = {name: place for place, name in enumerate(names)}
    shapes: dict[Shape, int] = {}
    kernels = sorted({each.compute_kernel for each in ordered})
    count = len(ordered)
    shape_of, storage_of = np.zeros(count, np.int64), np.zeros(count, np.int64)
    cost, bytes_, everywhere = np.zeros((count, 1)), np.zeros((count, 2)), np.zeros(count, bool)
    for place, each in enumerate(ordered):
        span, num = _SPANS[each.sharding_type], len(each.shards)
        everywhere[place] = span is Span.ALL
        nodes = max(num // RANKS_PER_NODE, 1)
        columns = num if "column" in each.sharding_type else 1
        shape = Shape(
            each.sharding_type, span, nodes if span is Span.NODES else num, num, columns, "pooled"
        )
        shape_of[place] = shapes.setdefault(shape, len(shapes))
        storage_of[place] = kernels.index(each.compute_kernel)
        # Shards take equally long; the last shard may be a little smaller.
        cost[place] = max(shard.perf.total for shard in each.shards) / 1e3
        bytes_[place, 0] = max(shard.storage.hbm for shard in each.shards)
        bytes_[place, 1] = max(shard.storage.ddr for shard in each.shards)
    table = np.asarray([index[each.name] for each in ordered])
    storage = reserved.devices[0].storage
    some = everywhere[:, None]
    options = Options(
        table_names=names,
        shapes=list(shapes),
        storages=kernels,
        memories=["hbm", "ddr"],
        ranks_per_node=min(RANKS_PER_NODE, reserved.world_size),
        num_ranks=reserved.world_size,
        start=np.searchsorted(table, np.arange(len(names) + 1)),
        table=table,
        shape=shape_of,
        storage=storage_of,
        base=np.where(some, cost, 0),
        shard=np.where(some, 0, cost),
        base_memory=np.where(some, bytes_, 0),
        shard_memory=np.where(some, 0, bytes_),
        fixed=np.zeros(1),
        capacity=np.asarray([storage.hbm, storage.ddr], np.float64),
        hits=np.full((count, 1), np.nan),
    )
    return options, ordered
