"""The sharding kinds of core: generators of layouts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

from sparring.contracts.layout import Layout, LayoutRequest
from sparring.contracts.shard_map import NUM_PARTITIONS
from sparring.errors import InvalidArgumentError

__all__ = ["data_parallel", "row_wise", "table_row_wise", "table_wise"]


def row_wise(request: LayoutRequest) -> Layout:
    """Rows over all ranks, as the job's shard map says."""
    _check_all_ranks(request, "row_wise", "table_row_wise spreads rows over some of them")
    return Layout(request.shard_map.owners, request.shard_map.world_size)


def table_wise(request: LayoutRequest) -> Layout:
    """All rows on one rank: the one that the plan names, else one by the table's name."""
    ranks = request.ranks or (_choice(request, request.shard_map.world_size),)
    if len(ranks) != 1:
        raise InvalidArgumentError(
            f"sharding plan: table {request.table.name!r} is table_wise, on one rank; found ranks "
            f"{list(ranks)}. Name one, or choose table_row_wise, which spreads rows over them",
            table=request.table.name,
        )
    return _spread(request, ranks, "table_wise")


def table_row_wise(request: LayoutRequest) -> Layout:
    """Rows over the ranks that the plan names, of a node or of several; else over those of one
    node, by the table's name."""
    world_size, per_node = request.shard_map.world_size, request.ranks_per_node
    begin = _choice(request, -(-world_size // per_node)) * per_node
    ranks = request.ranks or range(begin, min(begin + per_node, world_size))
    return _spread(request, ranks, "table_row_wise")


def data_parallel(request: LayoutRequest) -> Layout:
    """All rows on every rank."""
    _check_all_ranks(request, "data_parallel", "name none")
    shards = request.shard_map
    return Layout(shards.owners, shards.world_size, "data_parallel", is_replicated=True)


def _spread(request: LayoutRequest, ranks: Sequence[int], kind: str) -> Layout:
    """Contiguous ranges of partitions, as equal as can be."""
    turns = np.arange(NUM_PARTITIONS, dtype=np.int64) * len(ranks) // NUM_PARTITIONS
    owners = np.asarray(ranks, np.int32)[turns]
    return Layout(owners, request.shard_map.world_size, kind)


def _choice(request: LayoutRequest, count: int) -> int:
    """One of `count`, alike on all ranks, and others for other tables."""
    return xxhash.xxh3_64_intdigest(request.table.name.encode()) % count


def _check_all_ranks(request: LayoutRequest, kind: str, remedy: str) -> None:
    everyone = tuple(range(request.shard_map.world_size))
    if request.ranks not in ((), everyone):
        raise InvalidArgumentError(
            f"sharding plan: table {request.table.name!r} is {kind}, which is for all "
            f"{len(everyone)} ranks; found ranks {list(request.ranks)}; {remedy}",
            table=request.table.name,
        )
