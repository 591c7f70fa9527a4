"""`Tables`: declares the tables of one rank and opens their storages."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from sparring.contracts.ranks.layout import Layout, ShardingPlan
from sparring.contracts.ranks.rendezvous import Membership, Rendezvous
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
    """The tables of one rank. It waits for no background work: callers `quiesce` first.

    Args:
        place: whose shard of each table this is.
        rendezvous: who owns what.
        resources: learns of each table that is declared.
        events: where storages of stacks work in the background.
        plugin_manager: where backends are looked up; None: among the installed plugins.
        plan: how tables are sharded.

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
        """All that have rows, by name, in the order of declaration: tables, and the blocks of columns of
        those that are divided."""
        self.declared: dict[str, TableEntry] = {}
        """Tables by name, in the order of declaration."""
        self.expiring: list[TableEntry] = []
        """Those whose rows expire."""
        self._membership = membership
        self._rendezvous = rendezvous
        self._resources = resources
        self._events = events
        self._given_plugin_manager = plugin_manager
        self.layouts = Layouts(plan, rendezvous, lambda: self.plugin_manager)

    @cached_property
    def plugin_manager(self) -> PluginManager:
        """Where backends are looked up. Made once, for reading what is installed takes milliseconds."""
        return self._given_plugin_manager or make_plugin_manager()

    @cached_property
    def own_device(self) -> str | None:
        """As `StepContainer.own_device`."""
        return find_own_gpu(self._rendezvous.membership(), self.plugin_manager)

    def declare(self, table: TableConfig, storage: StorageChoice | Storage | None) -> None:
        """As `StepContainer.declare`."""
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
                f"table {table.name!r} is declared already, otherwise: {known.config} and {table}; "
                "give one of them another name",
                table=table.name,
            )
        if layout.columns:
            self._declare_blocks(table, storage, layout)
            return
        if isinstance(storage, Storage):
            check_given(storage, table)
            check_placement(storage, world_size)
            # The storage knows whose state it holds; a declaration need not say.
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
        """Adds a table whose columns are divided: each block as a table of its own."""
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
                f"table {table.name!r}: its block of columns is to be called {taken[0]!r}, and a table "
                "of that name is declared; give that one another name",
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

    def layout_of(self, table: str) -> Layout:
        """The layout of a declared table, or of one of its blocks of columns."""
        return self.entry(table).layout

    def entry(self, table: str) -> TableEntry:
        """A declared table, or a block of columns by its name.

        Raises:
            UnknownTableError: there is none of this name.
        """
        entry = self.declared.get(table) or self.entries.get(table)
        if entry is None:
            raise UnknownTableError(
                f"table {table!r} was not declared; declared are "
                f"{', '.join(self.declared) or 'none'}",
                table=table,
            )
        return entry

    def parts_of(self, table: str) -> tuple[TableEntry, ...]:
        """The entries with the rows of a table: itself, or its blocks of columns."""
        return self.entry(table).parts

    def storage(self, table: str) -> Storage:
        """As `StepContainer.storage`."""
        entry = self.entries.get(table) or self.entry(table)
        opened = self.open(entry) if entry.storage is None else entry.storage
        entry.check_whole()
        return opened

    def open(self, entry: TableEntry) -> Storage:
        """As `storage`, also where a load was cut short."""
        if entry.storage is None:
            self.layouts.check_tables(list(self.declared))
            assert entry.choice is not None  # a storage that was given is never dropped
            entry.attach_storage(self.open_storage(entry.choice, entry.config))
            entry.expect_part(entry.layout.shard_of(self._membership.rank))
        assert entry.storage is not None
        entry.storage._check_open()
        return entry.storage

    def probe_existing_rows(self, entry: TableEntry) -> None:
        """Opens the storage for reading if its place holds rows already.

        Nothing is made where there are none: the optimizer decides how wide rows will be.
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
        # Last, so that a probe that failed is made again.
        entry.was_probed = True

    def check_readable(self, entry: TableEntry) -> None:
        """Opens rows that outlived an earlier process, and refuses a part of a load.

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
        """As `StepContainer.tiers`."""
        choice = self.entry(table).choice
        if choice is None:
            return []
        inner = inner_storages(choice.backend, choice.options, self.plugin_manager)
        return [StorageChoice(each.backend, each.options) for each in inner] or [choice]

    def tier_counters(self, table: str) -> list[TierCounters]:
        """As `StepContainer.tier_counters`."""
        storage = self.parts_of(table)[0].storage
        if isinstance(storage, SupportsTiers):
            return storage.tier_counters()
        tiers = self.tiers(table) if storage is None else []
        return [TierCounters(each.backend) for each in tiers] if len(tiers) > 1 else []
