"""Layouts of a job's tables, by its sharding plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sparring.contracts.ranks.layout import Layout, LayoutRequest, ShardingPlan
from sparring.contracts.ranks.rendezvous import Rendezvous
from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring.plugins.registry import PluginManager
from sparring.runtime.suggestions import format_suggestion

__all__ = ["Layouts"]


class Layouts:
    """Creates the layouts of a job's tables.

    Args:
        plan: sharding plan of the job; the same on all ranks.
        rendezvous: provides the ranks and the shard map.
        plugins: returns the plugin manager that finds sharding kinds; called only if the plan has
            tables.

    Raises:
        PluginError: no plugin provides a sharding kind of the plan.
        InvalidArgumentError: the plan names a rank that this job does not have.
    """

    def __init__(
        self, plan: ShardingPlan, rendezvous: Rendezvous, plugins: Callable[[], PluginManager]
    ) -> None:
        self.plan = plan
        self._plugins = plugins
        self._shard_map = rendezvous.shard_map()
        self._membership = rendezvous.membership()
        owners, world_size = self._shard_map.owners, self._shard_map.world_size
        # Shared by all tables.
        self._row_wise = Layout(owners, world_size)
        self._replicated = Layout(owners, world_size, "data_parallel", is_replicated=True)
        for table in plan.tables:
            sharding = plan.sharding_of(table)
            assert sharding is not None
            plugins().sharding_kind(sharding.kind)
            unknown = [rank for rank in sharding.ranks if rank >= self._shard_map.world_size]
            if unknown:
                raise InvalidArgumentError(
                    f"sharding plan: table {table!r} is planned for rank {unknown[0]}; this job has "
                    f"ranks 0 to {self._shard_map.world_size - 1}. Create a plan for this number of "
                    "ranks",
                    table=table,
                    rank=unknown[0],
                )

    def layout(self, table: TableConfig) -> Layout:
        """Returns the layout of a table: by the plan, otherwise by its placement.

        Args:
            table: declaration of the table.

        Raises:
            InvalidArgumentError: the plan contradicts the declaration, or its kind rejects the ranks.
        """
        sharding = self.plan.sharding_of(table.name)
        if sharding is None:
            return self._replicated if table.is_replicated else self._row_wise
        kind, shards = sharding.kind, self._shard_map
        descriptor = self._plugins().sharding_kind(kind)
        if descriptor.needs_nodes and not sharding.ranks:
            self._check_nodes(table.name, kind)
        per_node = self._membership.local_world_size
        request = LayoutRequest(table, sharding.ranks, shards, per_node, sharding.columns)
        layout = descriptor.factory(request)
        if not isinstance(layout, Layout) or layout.world_size != shards.world_size:
            raise InvalidArgumentError(
                f"sharding kind {kind!r} must return a Layout of {shards.world_size} ranks "
                f"for table {table.name!r}, found {layout!r}; report this to the authors of the plugin",
                table=table.name,
            )
        if layout.columns and layout.columns[-1] != table.dim:
            raise InvalidArgumentError(
                f"sharding kind {kind!r} must split all {table.dim} columns of table {table.name!r}, "
                f"found blocks that end at {layout.columns[-1]}; report this to the authors of "
                "the plugin",
                table=table.name,
            )
        if layout.columns and table.dtype == "int8":
            raise UnsupportedError(
                f"sharding plan: table {table.name!r} is {kind}, which splits rows by columns, but the "
                "elements of an int8 row share a scale; choose a kind that does not split rows: "
                "row_wise, table_wise or table_row_wise; or declare another dtype",
                table=table.name,
            )
        if table.is_replicated and not layout.is_replicated:
            raise InvalidArgumentError(
                f"sharding plan: table {table.name!r} is planned as {kind}, but declared with placement "
                "'replicated', which is data_parallel; remove one of them",
                table=table.name,
            )
        if sharding.transfer == "pooled" and layout.is_replicated:
            raise InvalidArgumentError(
                f"sharding plan: table {table.name!r} is {kind}, so every rank has all its rows and no "
                "other rank can pool for it; leave transfer='pooled' out",
                table=table.name,
            )
        return layout if sharding.transfer == "rows" else replace(layout, transfer="pooled")

    def _check_nodes(self, table: str, kind: str) -> None:
        """Checks that the node of a rank follows from its number."""
        member, world_size = self._membership, self._shard_map.world_size
        per_node = member.local_world_size
        if world_size % per_node == 0 and member.rank % per_node == member.local_rank:
            return
        raise InvalidArgumentError(
            f"sharding plan: table {table!r} is {kind}, which assigns nodes. All nodes must have the "
            f"same number of consecutive ranks; rank {member.rank} of {world_size} is number "
            f"{member.local_rank} of {per_node} on its node. Specify the table's ranks: "
            f"TableSharding({kind!r}, [0, 1]); or start the same number of ranks on each node",
            table=table,
        )

    def check_tables(self, declared: list[str]) -> None:
        """Checks that all tables of the plan were declared.

        Args:
            declared: names of the declared tables.

        Raises:
            InvalidArgumentError: the plan contains a table that was not declared.
        """
        unknown = [name for name in self.plan.tables if name not in declared]
        if unknown:
            raise InvalidArgumentError(
                f"sharding plan: it contains table {unknown[0]!r}, which was not declared: "
                f"{format_suggestion(unknown[0], declared)}. Declare all tables of the plan before "
                "the first row is written, or correct the plan",
                table=unknown[0],
            )
