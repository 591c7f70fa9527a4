"""The tables of a container on this rank: their declarations, and their storages once opened."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparring.collective import Collective
from sparring.declared_table import (
    DeclaredTable,
    StorageChoice,
    check_declaration,
    check_given,
    check_placement,
)
from sparring.errors import InvalidArgumentError, UnknownTableError
from sparring.events import EventLoop
from sparring.flushing import Flushes
from sparring.plugins import make_plugin_manager
from sparring.rendezvous import Rendezvous, Shard
from sparring.resources import ResourceManager
from sparring.state_changing import drop_state, set_state
from sparring.storage.at_work import StoragesAtWork
from sparring.storage.contract import Columns, Storage
from sparring.storage.opening import found_table, open_storage
from sparring.storage.tiered import TierCounters
from sparring.table import TableConfig
from sparring.visible_devices import own_gpu

if TYPE_CHECKING:
    from sparring.plugins import PluginManager

__all__ = ["TableContainer"]


class TableContainer(ABC):
    """The part of a `StepContainer` that holds its tables."""

    def __init__(
        self,
        collective: Collective,
        rendezvous: Rendezvous,
        plugin_manager: PluginManager | None,
    ) -> None:
        num_ranks = rendezvous.shard_map().world_size
        if num_ranks != collective.world_size:
            raise InvalidArgumentError(
                f"container: the rendezvous knows {num_ranks} ranks, the collective "
                f"{collective.world_size}; both must come from one job"
            )
        self.collective = collective
        self.rendezvous = rendezvous
        self.resources = ResourceManager()
        self.events = EventLoop()
        # Others are told in time that this rank cannot go on.
        most_seconds = collective.deadline_seconds / 2 if collective.world_size > 1 else None
        self.at_work = StoragesAtWork()
        self.flushes = Flushes(self.events, self.at_work, most_seconds)
        self._plugin_manager = plugin_manager
        self._tables: dict[str, DeclaredTable] = {}
        self._own_device: str | None = None
        self._knows_own_device = False

    @abstractmethod
    def check_open(self) -> None:
        """Raises `ClosedError` if the container was closed."""

    @property
    def own_device(self) -> str | None:
        """Which GPU ``cuda`` means on this rank: that of its number on this machine, or the only
        one that this process sees. None on a single rank, where it means the one that is current."""
        if not self._knows_own_device:
            manager = self._plugin_manager or make_plugin_manager()
            self._own_device = own_gpu(self.rendezvous.membership(), manager)
            self._knows_own_device = True
        return self._own_device

    @abstractmethod
    def join_ahead(self) -> None:
        """Returns when no lookup and no load runs beside this thread."""

    @abstractmethod
    def join_load(self) -> None:
        """Returns when no load runs beside this thread: rows and counters are what they are."""

    def declare(self, table: TableConfig, storage: StorageChoice | Storage | None = None) -> None:
        """Adds a table. Its storage is opened when the first row may be written, because only
        the optimizer knows how wide rows are.

        Args:
            table: what its rows are. Declaring an equal table again does nothing.
            storage: which backend to open, or an open storage that then belongs to the container;
                None: ``hkv`` with its defaults, or what an earlier declaration said.

        Raises:
            InvalidArgumentError: another table of this name exists, or it was declared with
                another storage, or `storage` is for another.
        """
        self.check_open()
        check_declaration(table, storage)
        if isinstance(storage, StorageChoice):
            storage = storage.on(self.collective.rank, self.collective.world_size, table.name)
            if storage.means_own_device and self.own_device is not None:
                storage = storage.on_device(self.own_device)
        known = self._tables.get(table.name)
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
            check_placement(storage, self.collective.world_size)
            # The storage knows whose state it holds; a declaration need not say.
            table = storage.table
            entry = DeclaredTable(table, None, storage, self.events)
        else:
            entry = DeclaredTable(table, storage or StorageChoice(), None, self.events)
        self._tables[table.name] = entry
        self.resources.declare(table, entry.view)

    @property
    def tables(self) -> Mapping[str, TableConfig]:
        """The declared tables by name."""
        return {name: entry.config for name, entry in self._tables.items()}

    def set_state(self, table: str, initial_state: npt.NDArray[Any], method: str = "") -> None:
        """Says what optimizer state lies behind each embedding of `table`.

        Args:
            initial_state: ``(state_width,)`` of the computing dtype: the state of a new row.
            method: whose state it is: an update method, or an optimizer of a framework.

        Raises:
            InvalidArgumentError: the table has rows of another width, or another method's rows.
        """
        self.check_open()
        self.join_ahead()
        self.flushes.join()
        set_state(self, self.entry(table), np.asarray(initial_state), method)

    def check_state(self, table: str, state_width: int, method: str = "") -> None:
        """Raises what `set_state` would raise; sets nothing."""
        self.check_open()
        entry = self.entry(table)
        entry.check_state(entry.config.with_state(state_width, method))

    def drop_state(self, table: str) -> None:
        """Takes the optimizer's state off all rows of a table on this rank; embeddings stay.

        The next optimizer starts from its own initial state.

        Raises:
            UnsupportedError: the storage was given open, or outlives the process; for the latter
                the message has the ``sparring convert`` command to run.
        """
        self.check_open()
        self.join_ahead()
        self.flushes.join()
        drop_state(self, self.entry(table))

    def storage(self, table: str) -> Storage:
        """This rank's shard of a table, opened if it was not.

        Raises:
            InterruptedLoadError: it holds a part of a snapshot, as a load was cut short.
            InvalidArgumentError: it holds rows that another rank kept.
        """
        self.check_open()
        self.join_load()
        entry = self.entry(table)
        opened = self.opened(entry)
        entry.check_whole()
        return opened

    def opened(self, entry: DeclaredTable) -> Storage:
        """As `storage`, also where a load was cut short; for parts of the package."""
        if entry.storage is None:
            assert entry.choice is not None  # a storage that was given is never dropped
            entry.hold(self.open_storage(entry.choice, entry.config))
            entry.expect_part(self._shard_of(entry.config))
        assert entry.storage is not None
        entry.storage._check_open()
        return entry.storage

    def seek_rows(self, entry: DeclaredTable) -> None:
        """Opens the storage for reading if rows lie there already; for parts of the package.

        Nothing is made where there are none: how wide rows will be is the optimizer's to say.
        """
        if entry.is_sought or entry.storage is not None:
            return
        assert entry.choice is not None
        manager = self._plugin_manager or make_plugin_manager()
        choice = entry.choice
        found = found_table(choice.backend, entry.config, manager, choice.options)
        if found is not None:
            if entry.initial_state is None:
                entry.config = found
                entry.whole = Columns(0, found.width)
            self.opened(entry)
        # Said last: who fails to look looks again.
        entry.is_sought = True

    def open_storage(self, choice: StorageChoice, config: TableConfig) -> Storage:
        """Opens a storage for a table's rows on this rank; for parts of the package."""
        opened = open_storage(
            choice.backend,
            config,
            validate=False,
            plugin_manager=self._plugin_manager,
            shard=self._shard_of(config) if self.collective.world_size > 1 else None,
            **choice.options,
        )
        try:
            check_placement(opened, self.collective.world_size)
        except InvalidArgumentError:
            opened.close()
            raise
        return opened

    def _shard_of(self, config: TableConfig) -> Shard:
        return self.rendezvous.shard_map().shard_of(
            self.collective.rank, is_replicated=config.is_replicated
        )

    def num_rows(self, table: str) -> int:
        """Rows of a table on this rank."""
        self.check_open()
        self.join_load()
        self.flushes.join()
        entry = self.entry(table)
        self.seek_rows(entry)
        return 0 if entry.storage is None else entry.storage.size

    def table_bytes(self, table: str) -> int:
        """Memory that a table holds on this rank."""
        self.check_open()
        self.join_load()
        entry = self.entry(table)
        return 0 if entry.storage is None else entry.storage.memory_bytes

    def num_not_admitted(self, table: str) -> int:
        """Gradients that the table's admission filter dropped on this rank."""
        self.join_load()
        return self.entry(table).num_not_admitted

    def tier_counters(self, table: str) -> list[TierCounters]:
        """What was counted of each tier of a table on this rank, hottest first; nothing for a
        table that is in no stack of storages."""
        self.check_open()
        self.join_load()
        return self.entry(table).tier_counters()

    def num_forgotten(self, table: str) -> int:
        """Ids that the table's admission filter no longer counts on this rank, for want of room."""
        self.join_load()
        made = self.entry(table).admission_filter
        return 0 if made is None else int(made.num_forgotten)

    def entry(self, table: str) -> DeclaredTable:
        """A declared table; raises `UnknownTableError`."""
        entry = self._tables.get(table)
        if entry is None:
            raise UnknownTableError(
                f"table {table!r} was not declared; declared are "
                f"{', '.join(self._tables) or 'none'}",
                table=table,
            )
        return entry

    def entries(self) -> list[DeclaredTable]:
        """All declared tables."""
        return list(self._tables.values())
