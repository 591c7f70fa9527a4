"""The sharding kinds of core: generators of layouts."""

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
    """Rows over all ranks, as the job's shard map says."""
    _check_whole(request, "row_wise")
    _check_all_ranks(request, "row_wise", "table_row_wise spreads rows over some of them")
    return Layout(request.shard_map.owners, request.shard_map.world_size)


def table_wise(request: LayoutRequest) -> Layout:
    """All rows on one rank: the one that the plan names, else one by the table's name."""
    _check_whole(request, "table_wise")
    ranks = request.ranks or (_choose(request, request.shard_map.world_size),)
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
    _check_whole(request, "table_row_wise")
    ranks = sorted(request.ranks) or _node(request, _choose(request, _num_nodes(request)))
    return _spread(request, ranks, "table_row_wise")


def data_parallel(request: LayoutRequest) -> Layout:
    """All rows on every rank."""
    _check_whole(request, "data_parallel")
    _check_all_ranks(request, "data_parallel", "name none")
    shards = request.shard_map
    return Layout(shards.owners, shards.world_size, "data_parallel", is_replicated=True)


def column_wise(request: LayoutRequest) -> Layout:
    """Each block of columns on one rank: those that the plan names, in order; else one after the
    other, from one by the table's name on."""
    world_size = request.shard_map.world_size
    begin = _choose(request, world_size)
    ranks = [(begin + number) % world_size for number in range(world_size)]
    return _divide_columns(request, "column_wise", [[rank] for rank in ranks])


def table_column_wise(request: LayoutRequest) -> Layout:
    """As `column_wise`, on the ranks of one node."""
    nodes = {rank // request.ranks_per_node for rank in request.ranks}
    if len(nodes) > 1:
        raise InvalidArgumentError(
            f"sharding plan: table {request.table.name!r} is table_column_wise, on the ranks of one "
            f"node; found ranks {list(request.ranks)} of {len(nodes)} nodes of "
            f"{request.ranks_per_node} ranks. Name those of one, or choose column_wise",
            table=request.table.name,
        )
    ranks = _node(request, _choose(request, _num_nodes(request)))
    return _divide_columns(request, "table_column_wise", [[rank] for rank in ranks])


def grid(request: LayoutRequest) -> Layout:
    """Each block of columns by ranges of rows over the ranks of one node: those that the plan names,
    block after block; else node after node, from one by the table's name on."""
    count = _num_nodes(request)
    begin = _choose(request, count)
    nodes = [_node(request, (begin + number) % count) for number in range(count)]
    return _divide_columns(request, "grid", nodes)


def _divide_columns(request: LayoutRequest, kind: str, groups: Sequence[Sequence[int]]) -> Layout:
    """Blocks of columns, each over the ranks of a place.

    Args:
        request: what is asked for.
        kind: its name.
        places: where blocks go that the plan names no ranks for, one after the other.
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
            f"sharding plan: table {name!r} has dim {dim}, which {columns} blocks of columns do not "
            f"divide; choose columns of {', '.join(map(str, divisors))}",
            table=name,
            columns=columns,
        )
    if ranks:
        per_block, rest = divmod(len(ranks), columns)
        is_single = kind != "grid"
        if rest or (is_single and per_block != 1):
            wanted = (
                f"{columns} ranks, one for each block" if is_single else f"{columns} times as many"
            )
            raise InvalidArgumentError(
                f"sharding plan: table {name!r} is {kind} with {columns} blocks of columns, found "
                f"{len(ranks)} ranks {list(ranks)}; name {wanted}, or other columns",
                table=name,
                columns=columns,
            )
        groups = [ranks[at : at + per_block] for at in range(0, len(ranks), per_block)]
        for each in groups:
            if len(set(each)) < len(each):
                raise InvalidArgumentError(
                    f"sharding plan: table {name!r} names a rank twice for one block of columns, found "
                    f"{list(each)}; name each of its ranges of rows another rank",
                    table=name,
                )
    owners = np.stack([_owners(groups[number % len(groups)]) for number in range(columns)])
    world_size = request.shard_map.world_size
    if columns == 1:
        return Layout(owners[0], world_size, kind)
    begins = tuple(range(0, dim + 1, dim // columns))
    return Layout(owners, world_size, kind, columns=begins)


def _spread(request: LayoutRequest, ranks: Sequence[int], kind: str) -> Layout:
    """Contiguous ranges of partitions, as equal as can be."""
    return Layout(_owners(ranks), request.shard_map.world_size, kind)


def _owners(ranks: Sequence[int]) -> npt.NDArray[np.int32]:
    turns = np.arange(NUM_PARTITIONS, dtype=np.int64) * len(ranks) // NUM_PARTITIONS
    return np.asarray(ranks, np.int32)[turns]


def _num_nodes(request: LayoutRequest) -> int:
    return -(-request.shard_map.world_size // request.ranks_per_node)


def _node(request: LayoutRequest, number: int) -> list[int]:
    """The ranks of a node."""
    begin = number * request.ranks_per_node
    return list(range(begin, min(begin + request.ranks_per_node, request.shard_map.world_size)))


def _choose(request: LayoutRequest, count: int) -> int:
    """One of `count`, alike on all ranks, and others for other tables."""
    return xxhash.xxh3_64_intdigest(request.table.name.encode()) % count


def _check_whole(request: LayoutRequest, kind: str) -> None:
    """Refuses blocks of columns of a kind that keeps rows whole."""
    if request.columns is not None and request.columns != 1:
        raise InvalidArgumentError(
            f"sharding plan: table {request.table.name!r} is {kind}, which keeps rows whole; found "
            f"columns={request.columns}. Leave columns out, or choose column_wise, table_column_wise "
            "or grid",
            table=request.table.name,
            columns=request.columns,
        )


def _check_all_ranks(request: LayoutRequest, kind: str, remedy: str) -> None:
    everyone = tuple(range(request.shard_map.world_size))
    if tuple(sorted(request.ranks)) not in ((), everyone):
        raise InvalidArgumentError(
            f"sharding plan: table {request.table.name!r} is {kind}, which is for all "
            f"{len(everyone)} ranks; found ranks {list(request.ranks)}; {remedy}",
            table=request.table.name,
        )
