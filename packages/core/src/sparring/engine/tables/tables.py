"""`Tables`: declares the tables of one rank and opens their storages."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from sparring.contracts.ranks.layout import Layout, ShardingPlan
from sparring.contracts.ranks.rendezvous import Membership, Rendezvous
from sparring.contracts.ranks.shard_map import KeyOwners, ShardMap
from sparring.contracts.storage.column_block import ColumnBlock
from sparring.contracts.storage.results import Columns
from sparring.contracts.storage.storage import Storage
from sparring.contracts.storage.tiers import SupportsTiers, TierCounters
from sparring.contracts.tables.table import TableConfig
from sparring.engine.resource_manager import ResourceManager
from sparring.engine.tables.entry import ColumnBlocksEntry, TableBlock, TableEntry
from sparring.engine.tables.storage_choice import (
    StorageChoice,
    check_column_blocks,
    check_declaration,
    check_given,
    check_placement,
)
from sparring.errors import InvalidArgumentError, UnknownTableError, UnsupportedError
from sparring.plugins.registry import make_plugin_manager
from sparring.rendezvous.visible_devices import find_own_gpu
from sparring.runtime.events import EventLoop
from sparring.sharding.layouts import Layouts
from sparring.storage.open import found_table, inner_storages, open_storage

if TYPE_CHECKING:
    from sparring.plugins.registry import PluginManager

__all__ = ["Tables"]


class Tables:
    """The tables of one rank. It does not wait for background work: callers must `quiesce` first.

    Args:
        membership: rank whose shard of each table this is.
        rendezvous: provides the owners of partitions.
        resources: is notified of each declared table.
        events: event loop for background work of stacks of storages.
        plugin_manager: finds backends; None uses the installed plugins.
        plan: sharding plan.

    Raises:
        PluginError, InvalidArgumentError: the plan names an unknown kind or rank.
    """

    def __init__(
        self,
        membership: Membership,
        rendezvous: Rendezvous,
        resources: ResourceManager,
        events: EventLoop,
        plugin_manager: PluginManager | None,
        plan: ShardingPlan,
    ) -> None:
        self.entries: dict[str, TableEntry] = {}
        """Entries that have rows, by name, in the order of declaration: tables, and the blocks of
        tables that are sharded by columns."""
        self.declared: dict[str, TableEntry] = {}
        """Tables by name, in the order of declaration."""
        self.expiring: list[TableEntry] = []
        """Entries with a TTL."""
        self._membership = membership
        self._rendezvous = rendezvous
        self._resources = resources
        self._events = events
        self._given_plugin_manager = plugin_manager
        self.layouts = Layouts(plan, rendezvous, lambda: self.plugin_manager)

    @cached_property
    def plugin_manager(self) -> PluginManager:
        """Finds backends. Created once, because reading the installed plugins takes milliseconds."""
        return self._given_plugin_manager or make_plugin_manager()

    @cached_property
    def own_device(self) -> str | None:
        """See `StepContainer.own_device`."""
        return find_own_gpu(self._rendezvous.membership(), self.plugin_manager)

    def declare(self, table: TableConfig, storage: StorageChoice | Storage | None) -> None:
        """Implements `StepContainer.declare`."""
        rank, world_size = self._membership.rank, self._membership.world_size
        check_declaration(table, storage)
        layout = self.layouts.layout(table)
        if layout.is_replicated:
            table = replace(table, placement="replicated")
        if isinstance(storage, StorageChoice):
            storage = storage.on(rank, world_size, table.name)
            if storage.uses_own_device and self.own_device is not None:
                storage = storage.on_device(self.own_device)
        known = self.declared.get(table.name) or self.entries.get(table.name)
        if known is not None:
            if known.config.with_state(0) == table.with_state(0):
                known.check_same_storage(storage)
                return
            raise InvalidArgumentError(
                f"declare: table {table.name!r} is already declared as {known.config}, found {table}; "
                "give one of them another name",
                table=table.name,
            )
        if layout.columns:
            self._declare_blocks(table, storage, layout)
            return
        if isinstance(storage, Storage):
            check_given(storage, table)
            check_placement(storage, world_size)
            # The storage knows the owner of its state; a declaration need not specify it.
            table = storage.table
            choice, opened = None, storage
        else:
            choice, opened = storage or StorageChoice(), None
        entry = TableEntry(table, choice, opened, self._events, layout, rank)
        self.declared[table.name] = entry
        self._add(entry)
        if opened is not None:
            entry.expect_part(layout.shard_of(rank))

    def _declare_blocks(
        self, table: TableConfig, storage: StorageChoice | Storage | None, layout: Layout
    ) -> None:
        """Adds a table that is sharded by columns, with one entry per block."""
        check_column_blocks(table, storage, is_given=True)
        assert not isinstance(storage, Storage)
        choice, rank = storage or StorageChoice(), self._membership.rank
        whole = ColumnBlocksEntry(table, choice, None, self._events, layout, rank)
        blocks = []
        for number in range(layout.num_blocks):
            columns = ColumnBlock(*layout.columns[number : number + 2])
            name = f"{table.name}.columns-{columns.begin}-{columns.end}"
            config = replace(columns.table_of(table), name=name)
            block = TableBlock(whole, columns, number)
            own = layout.block(number)
            blocks.append(TableEntry(config, choice, None, self._events, own, rank, block=block))
        taken = [each.config.name for each in blocks if each.config.name in self.entries]
        if taken:
            raise InvalidArgumentError(
                f"declare: a block of columns of table {table.name!r} gets the name {taken[0]!r}, but a "
                "table with that name is declared; rename that table",
                table=table.name,
            )
        whole.parts = tuple(blocks)
        self.declared[table.name] = whole
        for each in blocks:
            self._add(each)
        names = [each.config.name for each in blocks]
        self._resources.declare(table, whole.view, names)

    def _add(self, entry: TableEntry) -> None:
        self.entries[entry.config.name] = entry
        if entry.visits is not None:
            self.expiring.append(entry)
        self._resources.declare(entry.config, entry.view)

    def change_owners(self, membership: Membership, shard_map: ShardMap) -> None:
        """Implements `StepContainer.change_owners`."""
        self._membership = membership
        owners, world_size = shard_map.owners, shard_map.world_size
        for entry in self.entries.values():
            entry.layout = replace(entry.layout, owners=owners, world_size=world_size)
            is_alone = entry.layout.is_replicated or world_size == 1
            own = None if is_alone else KeyOwners(entry.config.name, membership.rank, owners)
            entry.write_log.owners = own

    def layout_of(self, table: str) -> Layout:
        """Returns the layout of a declared table, or of one of its blocks of columns."""
        return self.entry(table).layout

    def entry(self, table: str) -> TableEntry:
        """Returns the entry of a declared table, or of a block of columns.

        Raises:
            UnknownTableError: there is no entry with this name.
        """
        entry = self.declared.get(table) or self.entries.get(table)
        if entry is None:
            raise UnknownTableError(
                f"table {table!r} was not declared; declared tables: "
                f"{', '.join(self.declared) or 'none'}",
                table=table,
            )
        return entry

    def parts_of(self, table: str) -> tuple[TableEntry, ...]:
        """Returns the entries that have the rows of a table: the table, or its blocks of columns."""
        return self.entry(table).parts

    def storage(self, table: str) -> Storage:
        """Implements `StepContainer.storage`."""
        entry = self.entries.get(table) or self.entry(table)
        opened = self.open(entry) if entry.storage is None else entry.storage
        entry.check_whole()
        return opened

    def open(self, entry: TableEntry) -> Storage:
        """Returns the storage of an entry like `storage`, but also if a load was interrupted."""
        if entry.storage is None:
            self.layouts.check_tables(list(self.declared))
            assert entry.choice is not None  # a storage that was passed in is never dropped
            entry.attach_storage(self.open_storage(entry.choice, entry.config))
            entry.expect_part(entry.layout.shard_of(self._membership.rank))
        assert entry.storage is not None
        entry.storage._check_open()
        return entry.storage

    def probe_existing_rows(self, entry: TableEntry) -> None:
        """Opens the storage for reading if it already contains rows.

        Without rows, no storage is created, because the optimizer determines the width of the rows.
        """
        if entry.block is not None or entry.was_probed or entry.storage is not None:
            return
        assert entry.choice is not None
        choice = entry.choice
        found = found_table(choice.backend, entry.config, self.plugin_manager, choice.options)
        if found is not None:
            if entry.initial_state is None:
                entry.config = found
                entry.whole = Columns(0, found.width)
            self.open(entry)
        # Set last, so that a failed probe is repeated.
        entry.was_probed = True

    def check_readable(self, entry: TableEntry) -> None:
        """Opens rows of an earlier process, and checks them.

        Raises:
            InterruptedLoadError, InvalidArgumentError: as `TableEntry.check_whole`.
        """
        for part in entry.parts:
            if part.storage is None and not part.was_probed:
                self.probe_existing_rows(part)
            part.check_whole()

    def open_storage(self, choice: StorageChoice, config: TableConfig) -> Storage:
        """Opens a storage for a table's rows on this rank."""
        rank, world_size = self._membership.rank, self._membership.world_size
        opened = open_storage(
            choice.backend,
            config,
            validate=False,
            plugin_manager=self.plugin_manager,
            shard=self.layout_of(config.name).shard_of(rank) if world_size > 1 else None,
            **choice.options,
        )
        try:
            check_placement(opened, world_size)
            block = self.entry(config.name).block
            if block is not None:
                check_column_blocks(block.whole.config, opened)
        except (InvalidArgumentError, UnsupportedError):
            opened.close()
            raise
        return opened

    def tiers(self, table: str) -> list[StorageChoice]:
        """Implements `StepContainer.tiers`."""
        choice = self.entry(table).choice
        if choice is None:
            return []
        inner = inner_storages(choice.backend, choice.options, self.plugin_manager)
        return [StorageChoice(each.backend, each.options) for each in inner] or [choice]

    def tier_counters(self, table: str) -> list[TierCounters]:
        """Implements `StepContainer.tier_counters`."""
        storage = self.parts_of(table)[0].storage
        if isinstance(storage, SupportsTiers):
            return storage.tier_counters()
        tiers = self.tiers(table) if storage is None else []
        return [TierCounters(each.backend) for each in tiers] if len(tiers) > 1 else []
