"""The tables of one rank: their declarations, and their storages once opened."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from sparring.contracts.collective import Collective
from sparring.contracts.rendezvous import Rendezvous
from sparring.contracts.results import Columns
from sparring.contracts.shard_map import KeyOwners, Shard
from sparring.contracts.storage import Storage
from sparring.contracts.table import TableConfig
from sparring.engine.resource_manager import ResourceManager
from sparring.engine.table_entry import (
    StorageChoice,
    TableEntry,
    check_declaration,
    check_given,
    check_placement,
)
from sparring.errors import InvalidArgumentError, UnknownTableError
from sparring.plugins.registry import make_plugin_manager
from sparring.rendezvous.visible_devices import own_gpu
from sparring.runtime.events import EventLoop
from sparring.storage.open import found_table, open_storage

if TYPE_CHECKING:
    from sparring.plugins.registry import PluginManager

__all__ = ["Tables"]


class Tables:
    """The tables of one rank. It waits for no background work: callers `quiesce` first.

    Args:
        collective, rendezvous: whose shard of each table this is.
        resources: learns of each table that is declared.
        events: where storages of stacks work in the background.
        plugin_manager: where backends are looked up; None: among the installed plugins.
    """

    def __init__(
        self,
        collective: Collective,
        rendezvous: Rendezvous,
        resources: ResourceManager,
        events: EventLoop,
        plugin_manager: PluginManager | None,
    ) -> None:
        self.entries: dict[str, TableEntry] = {}
        """By name, in the order of declaration."""
        self._collective = collective
        self._rendezvous = rendezvous
        self._resources = resources
        self._events = events
        self._given_plugin_manager = plugin_manager

    @cached_property
    def plugin_manager(self) -> PluginManager:
        """Where backends are looked up. Made once, for reading what is installed takes milliseconds."""
        return self._given_plugin_manager or make_plugin_manager()

    @cached_property
    def own_device(self) -> str | None:
        """As `StepContainer.own_device`."""
        return own_gpu(self._rendezvous.membership(), self.plugin_manager)

    def declare(self, table: TableConfig, storage: StorageChoice | Storage | None) -> None:
        """As `StepContainer.declare`."""
        rank, world_size = self._collective.rank, self._collective.world_size
        check_declaration(table, storage)
        if isinstance(storage, StorageChoice):
            storage = storage.on(rank, world_size, table.name)
            if storage.means_own_device and self.own_device is not None:
                storage = storage.on_device(self.own_device)
        known = self.entries.get(table.name)
        if known is not None:
            if known.config.with_state(0) == table.with_state(0):
                known.check_same_storage(storage)
                return
            raise InvalidArgumentError(
                f"table {table.name!r} is declared already, otherwise: {known.config} and {table}; "
                "give one of them another name",
                table=table.name,
            )
        if isinstance(storage, Storage):
            check_given(storage, table)
            check_placement(storage, world_size)
            # The storage knows whose state it holds; a declaration need not say.
            table = storage.table
            choice, opened = None, storage
        else:
            choice, opened = storage or StorageChoice(), None
        entry = TableEntry(table, choice, opened, self._events, self._owners_of(table))
        self.entries[table.name] = entry
        self._resources.declare(table, entry.view)

    def _owners_of(self, config: TableConfig) -> KeyOwners | None:
        if config.is_replicated or self._collective.world_size == 1:
            return None
        owners = self._rendezvous.shard_map().owners
        return KeyOwners(config.name, self._collective.rank, owners)

    def entry(self, table: str) -> TableEntry:
        """A declared table.

        Raises:
            UnknownTableError: there is none of this name.
        """
        entry = self.entries.get(table)
        if entry is None:
            raise UnknownTableError(
                f"table {table!r} was not declared; declared are "
                f"{', '.join(self.entries) or 'none'}",
                table=table,
            )
        return entry

    def storage(self, table: str) -> Storage:
        """As `StepContainer.storage`."""
        entry = self.entry(table)
        opened = self.open(entry)
        entry.check_whole()
        return opened

    def open(self, entry: TableEntry) -> Storage:
        """As `storage`, also where a load was cut short."""
        if entry.storage is None:
            assert entry.choice is not None  # a storage that was given is never dropped
            entry.hold(self.open_storage(entry.choice, entry.config))
            entry.expect_part(self._shard_of(entry.config))
        assert entry.storage is not None
        entry.storage._check_open()
        return entry.storage

    def probe_existing_rows(self, entry: TableEntry) -> None:
        """Opens the storage for reading if its place holds rows already.

        Nothing is made where there are none: the optimizer decides how wide rows will be.
        """
        if entry.was_probed or entry.storage is not None:
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
        self.probe_existing_rows(entry)
        entry.check_whole()

    def open_storage(self, choice: StorageChoice, config: TableConfig) -> Storage:
        """Opens a storage for a table's rows on this rank."""
        world_size = self._collective.world_size
        opened = open_storage(
            choice.backend,
            config,
            validate=False,
            plugin_manager=self.plugin_manager,
            shard=self._shard_of(config) if world_size > 1 else None,
            **choice.options,
        )
        try:
            check_placement(opened, world_size)
        except InvalidArgumentError:
            opened.close()
            raise
        return opened

    def _shard_of(self, config: TableConfig) -> Shard:
        return self._rendezvous.shard_map().shard_of(
            self._collective.rank, is_replicated=config.is_replicated
        )
