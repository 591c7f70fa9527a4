"""Sharding kinds of core: functions that create the layout of a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from sparring.contracts.ranks.layout import Layout, LayoutRequest
from sparring.contracts.ranks.shard_map import NUM_PARTITIONS
from sparring.errors import InvalidArgumentError

__all__ = [
    "column_wise",
    "data_parallel",
    "grid",
    "row_wise",
    "table_column_wise",
    "table_row_wise",
    "table_wise",
]


def row_wise(request: LayoutRequest) -> Layout:
    """Distributes rows over all ranks by the job's shard map."""
    _check_whole(request, "row_wise")
    _check_all_ranks(
        request, "row_wise", "leave ranks out, or choose table_row_wise to use some ranks"
    )
    return Layout(request.shard_map.owners, request.shard_map.world_size)


def table_wise(request: LayoutRequest) -> Layout:
    """Stores all rows on one rank: the rank of the plan, otherwise a rank derived from the table's
    name."""
    _check_whole(request, "table_wise")
    ranks = request.ranks or (_choose(request, request.shard_map.world_size),)
    if len(ranks) != 1:
        raise InvalidArgumentError(
            f"sharding plan: table {request.table.name!r} is table_wise, which means on one rank; found "
            f"ranks {list(ranks)}. Specify one rank, or choose table_row_wise to use all of these",
            table=request.table.name,
        )
    return _spread(request, ranks, "table_wise")


def table_row_wise(request: LayoutRequest) -> Layout:
    """Distributes rows over the ranks of the plan, otherwise over the ranks of a node that is derived
    from the table's name."""
    _check_whole(request, "table_row_wise")
    ranks = sorted(request.ranks) or _node(request, _choose(request, _num_nodes(request)))
    return _spread(request, ranks, "table_row_wise")


def data_parallel(request: LayoutRequest) -> Layout:
    """Stores all rows on every rank."""
    _check_whole(request, "data_parallel")
    _check_all_ranks(request, "data_parallel", "leave ranks out")
    shards = request.shard_map
    return Layout(shards.owners, shards.world_size, "data_parallel", is_replicated=True)


def column_wise(request: LayoutRequest) -> Layout:
    """Stores each block of columns on one rank: on the ranks of the plan in order, otherwise on
    consecutive ranks, starting at one that is derived from the table's name."""
    world_size = request.shard_map.world_size
    begin = _choose(request, world_size)
    ranks = [(begin + number) % world_size for number in range(world_size)]
    return _divide_columns(request, "column_wise", [[rank] for rank in ranks])


def table_column_wise(request: LayoutRequest) -> Layout:
    """Stores each block of columns on one rank, like `column_wise`, with all ranks on one node."""
    nodes = {rank // request.ranks_per_node for rank in request.ranks}
    if len(nodes) > 1:
        raise InvalidArgumentError(
            f"sharding plan: table {request.table.name!r} is table_column_wise, which means on the ranks "
            f"of one node; found ranks {list(request.ranks)} of {len(nodes)} nodes of "
            f"{request.ranks_per_node} ranks. Specify ranks of one node, or choose column_wise",
            table=request.table.name,
        )
    ranks = _node(request, _choose(request, _num_nodes(request)))
    return _divide_columns(request, "table_column_wise", [[rank] for rank in ranks])


def grid(request: LayoutRequest) -> Layout:
    """Distributes the rows of each block of columns over the ranks of one node: over the ranks of the
    plan, block after block, otherwise over consecutive nodes, starting at one that is derived from the
    table's name."""
    count = _num_nodes(request)
    begin = _choose(request, count)
    nodes = [_node(request, (begin + number) % count) for number in range(count)]
    return _divide_columns(request, "grid", nodes)


def _divide_columns(request: LayoutRequest, kind: str, groups: Sequence[Sequence[int]]) -> Layout:
    """Creates the layout of blocks of columns, each over a group of ranks.

    Args:
        request: table, ranks and columns of the plan.
        kind: name of the sharding kind.
        groups: groups of ranks that are used in turn if the plan does not specify ranks.
    """
    name, dim, columns, ranks = (
        request.table.name,
        request.table.dim,
        request.columns,
        request.ranks,
    )
    if columns is None:
        most = len(ranks) if ranks else len(groups)
        columns = most if ranks else max(each for each in range(1, most + 1) if not dim % each)
    if columns > dim or dim % columns:
        divisors = [each for each in range(1, dim + 1) if not dim % each]
        raise InvalidArgumentError(
            f"sharding plan: table {name!r} has dim {dim}, which is not divisible by {columns} blocks of "
            f"columns; set columns to one of {', '.join(map(str, divisors))}",
            table=name,
            columns=columns,
        )
    if ranks:
        per_block, rest = divmod(len(ranks), columns)
        is_single = kind != "grid"
        if rest or (is_single and per_block != 1):
            wanted = (
                f"{columns} ranks, one per block" if is_single else f"a multiple of {columns} ranks"
            )
            raise InvalidArgumentError(
                f"sharding plan: table {name!r} is {kind} with {columns} blocks of columns, found "
                f"{len(ranks)} ranks {list(ranks)}; specify {wanted}, or change columns",
                table=name,
                columns=columns,
            )
        groups = [ranks[at : at + per_block] for at in range(0, len(ranks), per_block)]
        for each in groups:
            if len(set(each)) < len(each):
                raise InvalidArgumentError(
                    f"sharding plan: table {name!r} has a rank twice in one block of columns, found "
                    f"{list(each)}; specify a different rank for each range of rows",
                    table=name,
                )
    owners = np.stack([_owners(groups[number % len(groups)]) for number in range(columns)])
    world_size = request.shard_map.world_size
    if columns == 1:
        return Layout(owners[0], world_size, kind)
    begins = tuple(range(0, dim + 1, dim // columns))
    return Layout(owners, world_size, kind, columns=begins)


def _spread(request: LayoutRequest, ranks: Sequence[int], kind: str) -> Layout:
    """Creates a layout of contiguous ranges of partitions, of sizes as equal as possible."""
    return Layout(_owners(ranks), request.shard_map.world_size, kind)


def _owners(ranks: Sequence[int]) -> npt.NDArray[np.int32]:
    turns = np.arange(NUM_PARTITIONS, dtype=np.int64) * len(ranks) // NUM_PARTITIONS
    return np.asarray(ranks, np.int32)[turns]


def _num_nodes(request: LayoutRequest) -> int:
    return -(-request.shard_map.world_size // request.ranks_per_node)


def _node(request: LayoutRequest, number: int) -> list[int]:
    """Returns the ranks of a node."""
    begin = number * request.ranks_per_node
    return list(range(begin, min(begin + request.ranks_per_node, request.shard_map.world_size)))


def _choose(request: LayoutRequest, count: int) -> int:
    """Returns a number less than `count`, derived from the table's name and so the same on all
    ranks."""
    return xxhash.xxh3_64_intdigest(request.table.name.encode()) % count


def _check_whole(request: LayoutRequest, kind: str) -> None:
    """Rejects blocks of columns for a kind that does not split rows."""
    if request.columns is not None and request.columns != 1:
        raise InvalidArgumentError(
            f"sharding plan: table {request.table.name!r} is {kind}, which does not split rows; found "
            f"columns={request.columns}. Leave columns out, or choose column_wise, table_column_wise "
            "or grid",
            table=request.table.name,
            columns=request.columns,
        )


def _check_all_ranks(request: LayoutRequest, kind: str, remedy: str) -> None:
    everyone = tuple(range(request.shard_map.world_size))
    if tuple(sorted(request.ranks)) not in ((), everyone):
        raise InvalidArgumentError(
            f"sharding plan: table {request.table.name!r} is {kind}, which uses all "
            f"{len(everyone)} ranks; found ranks {list(request.ranks)}; {remedy}",
            table=request.table.name,
        )
