"""Plugin that registers the sharding kinds of core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparring.contracts.descriptors import API_VERSION, ShardingKindDescriptor
from sparring.contracts.hookspecs import hookimpl

if TYPE_CHECKING:
    from sparring.contracts.ranks.layout import Layout, LayoutRequest


@hookimpl
def sparring_register_sharding_kinds() -> Sequence[ShardingKindDescriptor]:
    return [
        ShardingKindDescriptor(
            name="row_wise",
            api_version=API_VERSION,
            summary="Distributes rows over all ranks.",
            factory=_row_wise,
        ),
        ShardingKindDescriptor(
            name="table_wise",
            api_version=API_VERSION,
            summary="Stores all rows of a table on one rank.",
            factory=_table_wise,
        ),
        ShardingKindDescriptor(
            name="table_row_wise",
            api_version=API_VERSION,
            summary="Distributes rows over the ranks of one node, or over the ranks of the plan.",
            factory=_table_row_wise,
            needs_nodes=True,
        ),
        ShardingKindDescriptor(
            name="data_parallel",
            api_version=API_VERSION,
            summary="Stores all rows on every rank; for small tables.",
            factory=_data_parallel,
        ),
        ShardingKindDescriptor(
            name="column_wise",
            api_version=API_VERSION,
            summary="Stores each block of columns on one rank.",
            factory=_column_wise,
        ),
        ShardingKindDescriptor(
            name="table_column_wise",
            api_version=API_VERSION,
            summary="Stores each block of columns on one rank of a node.",
            factory=_table_column_wise,
            needs_nodes=True,
        ),
        ShardingKindDescriptor(
            name="grid",
            api_version=API_VERSION,
            summary="Distributes the rows of each block of columns over the ranks of a node.",
            factory=_grid,
            needs_nodes=True,
        ),
    ]


def _row_wise(request: LayoutRequest) -> Layout:
    from sparring.sharding.kinds import row_wise

    return row_wise(request)


def _table_wise(request: LayoutRequest) -> Layout:
    from sparring.sharding.kinds import table_wise

    return table_wise(request)


def _table_row_wise(request: LayoutRequest) -> Layout:
    from sparring.sharding.kinds import table_row_wise

    return table_row_wise(request)


def _data_parallel(request: LayoutRequest) -> Layout:
    from sparring.sharding.kinds import data_parallel

    return data_parallel(request)


def _column_wise(request: LayoutRequest) -> Layout:
    from sparring.sharding.kinds import column_wise

    return column_wise(request)


def _table_column_wise(request: LayoutRequest) -> Layout:
    from sparring.sharding.kinds import table_column_wise

    return table_column_wise(request)


def _grid(request: LayoutRequest) -> Layout:
    from sparring.sharding.kinds import grid

    return grid(request)
