"""The tables of one rank: declarations, storages once opened, and logs of writes to them.

Long because declaring a table, opening its storage and logging writes keep one entry in order.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from sparring import _native
from sparring.contracts.admission import admission_from
from sparring.contracts.column_block import ColumnBlock
from sparring.contracts.expiry import expiry_from
from sparring.contracts.kernel_set import KernelSet
from sparring.contracts.layout import Layout, ShardingPlan
from sparring.contracts.rendezvous import Membership, Rendezvous
from sparring.contracts.results import Columns, Evicted, Keys
from sparring.contracts.shard_map import KeyOwners, Shard
from sparring.contracts.storage import Storage, interrupted_load, read_note, write_note
from sparring.contracts.storage_optional import (
    PART_NOTE,
    UNWATCHED,
    Background,
    SupportsBackground,
    SupportsPush,
    Write,
)
from sparring.contracts.table import TableConfig
from sparring.engine.checkpoint.copy_on_write import CopyOnWriteView
from sparring.engine.resource_manager import ResourceManager
from sparring.engine.storage_choice import (
    StorageChoice,
    check_declaration,
    check_divided,
    check_given,
    check_placement,
)
from sparring.engine.unpublished_keys import UnpublishedKeys
from sparring.engine.visits import Visits
from sparring.errors import (
    InterruptedLoadError,
    InvalidArgumentError,
    UnknownTableError,
    UnsupportedError,
)
from sparring.kernels import functions as kernels
from sparring.kernels.admission_filters import make_filter
from sparring.plugins.registry import make_plugin_manager
from sparring.rendezvous.visible_devices import own_gpu
from sparring.runtime.events import EventLoop
from sparring.sharding.layouts import Layouts
from sparring.storage.convert import conversion_command
from sparring.storage.native import capsule_of
from sparring.storage.open import found_table, open_storage
from sparring.storage.tiered.counters import TierCounters
from sparring.storage.tiered.options import TieredOptions
from sparring.storage.tiered.tiered_storage import TieredStorage

if TYPE_CHECKING:
    from sparring.plugins.registry import PluginManager

__all__ = ["CHANGED_BYTES", "BlockOf", "DividedEntry", "TableEntry", "Tables", "WriteLog"]


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
        place: Membership,
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
        self._place = place
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
        return own_gpu(self._rendezvous.membership(), self.plugin_manager)

    def declare(self, table: TableConfig, storage: StorageChoice | Storage | None) -> None:
        """As `StepContainer.declare`."""
        rank, world_size = self._place.rank, self._place.world_size
        check_declaration(table, storage)
        layout = self.layouts.layout(table)
        if layout.is_replicated:
            table = replace(table, placement="replicated")
        if isinstance(storage, StorageChoice):
            storage = storage.on(rank, world_size, table.name)
            if storage.means_own_device and self.own_device is not None:
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
        check_divided(table, storage, is_given=True)
        assert not isinstance(storage, Storage)
        choice, rank = storage or StorageChoice(), self._place.rank
        whole = DividedEntry(table, choice, None, self._events, layout, rank)
        blocks = []
        for number in range(layout.num_blocks):
            columns = ColumnBlock(*layout.columns[number : number + 2])
            name = f"{table.name}.columns-{columns.begin}-{columns.end}"
            config = replace(columns.table_of(table), name=name)
            block = BlockOf(whole, columns, number)
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
            entry.hold(self.open_storage(entry.choice, entry.config))
            entry.expect_part(entry.layout.shard_of(self._place.rank))
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
        rank, world_size = self._place.rank, self._place.world_size
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
                check_divided(block.whole.config, opened)
        except (InvalidArgumentError, UnsupportedError):
            opened.close()
            raise
        return opened


_ALL = "all partitions"


def _part_text(shard: Shard, *, is_replicated: bool) -> str:
    # All rows on one rank of several are no replica: the other ranks have none.
    if shard.world_size == 1:
        return _ALL
    if is_replicated:
        return f"{_ALL} (one of {shard.world_size} replicas)"
    digest = xxhash.xxh3_64_hexdigest(np.ascontiguousarray(shard.partitions, "<i8").tobytes())
    return f"rank {shard.rank} of {shard.world_size} (partitions {digest})"


class TableEntry:
    """A declared table and, once rows may be written, its storage."""

    __slots__ = (
        "admission_filter",
        "background",
        "block",
        "choice",
        "config",
        "embedding",
        "initial_state",
        "initializer",
        "kernels",
        "layout",
        "may_refuse",
        "num_not_admitted",
        "part",
        "parts",
        "pushed_to",
        "storage",
        "view",
        "visits",
        "was_probed",
        "whole",
        "write_log",
        "written_back",
    )

    def __init__(
        self,
        config: TableConfig,
        choice: StorageChoice | None,
        storage: Storage | None,
        background: Background,
        layout: Layout,
        rank: int,
        *,
        block: BlockOf | None = None,
    ) -> None:
        self.config = config
        self.choice = choice
        self.storage = storage
        self.block = block
        """Which columns of which table these are; None: all of a table's own."""
        self.parts: tuple[TableEntry, ...] = (self,)
        """Entries that have the rows: this, or the blocks of columns of a table that is divided."""
        self.initial_state: npt.NDArray[Any] | None = None
        self.forget_admission()
        self.num_not_admitted = 0
        self.kernels: KernelSet | None = None
        """Kernels of the device on which lookups and steps are to leave rows; None: the host."""
        self.was_probed = False
        """Whether rows that outlived an earlier process were looked for."""
        self.part: str | None = None
        """Text for `note_part` to write, until the note is known to be there."""
        self.initializer = kernels.initializer_spec(self._described)
        """Of the whole table: initial values and rounding are functions of its name and its columns."""
        own = self.initializer if block is None else kernels.initializer_spec(config)
        self.view = _native.TableView(config.dtype, own)
        self.embedding = Columns(0, config.dim)
        self.whole = Columns(0, config.width)
        expiry = expiry_from(config.expire)
        self.visits = None if expiry is None else Visits(expiry)
        self.layout = layout
        is_alone = layout.is_replicated or layout.world_size == 1
        owners = None if is_alone else KeyOwners(config.name, rank, layout.owners)
        self.write_log = WriteLog(config.name, owners, self.visits)
        self.background = background
        self.may_refuse = False
        """Whether a write may find no room."""
        self.written_back: SupportsBackground | None = None
        """The storage, where it writes in the background."""
        self.pushed_to: SupportsPush | None = None
        """The storage, where it updates its rows itself."""
        self.hold(storage)

    @property
    def _described(self) -> TableConfig:
        return self.config if self.block is None else self.block.whole.config

    @property
    def table_name(self) -> str:
        """Of the declared table whose rows these are."""
        return self._described.name

    @property
    def is_divided(self) -> bool:
        """Whether its columns are divided, and its rows are those of several `parts`."""
        return len(self.parts) > 1

    @property
    def is_first(self) -> bool:
        """Whether rows are counted here, not only in another block of columns of theirs."""
        return self.block is None or self.block.number == 0

    def forget_admission(self) -> None:
        """Forgets which ids were seen."""
        self.admission_filter = make_filter(admission_from(self.config.admission), self._described)

    def check_same_storage(self, storage: StorageChoice | Storage | None) -> None:
        """Refuses a second declaration that would put the rows elsewhere; None says nothing.

        Raises:
            InvalidArgumentError: `storage` is not what the table was declared with.
        """
        declared = self.storage if self.choice is None else self.choice
        if storage is None or storage is declared or storage == declared:
            return
        raise InvalidArgumentError(
            f"table {self.config.name!r} is declared already with {declared}, found {storage}; "
            "declare it once, or leave the storage out the second time",
            table=self.config.name,
        )

    def check_state(self, config: TableConfig) -> None:
        """Refuses rows of `config` where rows with another optimizer's state are stored.

        Raises:
            InvalidArgumentError: naming what to call or to run.
        """
        storage, method = self.storage, config.state_method or "the optimizer"
        if storage is None:
            return
        # Of a storage that was given without a method, the first optimizer says whose it is.
        found = self.config if self.choice is None else storage.table
        if not found.has_other_state(config):
            return
        if self.choice is not None and not (storage.size and found.state_width):
            return
        if self.choice is None:
            whose = f", {config.state_method!r}" if config.state_method else ""
            remedy = (
                f"give one that was opened for TableConfig.with_state({config.state_width}{whose})"
            )
        elif storage.capabilities.persistent:
            command = conversion_command(self.choice.backend, self.choice.options, found, config)
            remedy = f"keep the embeddings and start their state again in another place: {command}"
        else:
            remedy = (
                f"call StepContainer.drop_state({self.table_name!r}) first: embeddings stay, and their "
                "state starts again"
            )
        given = "the storage given" if self.choice is None else "its storage"
        raise InvalidArgumentError(
            f"table {config.name!r}: {given} holds {storage.size} rows with {found.state_width} "
            f"elements of state of {found.state_method or 'an unknown optimizer'}, {method} needs "
            f"{config.state_width} of its own; use the same kind of optimizer, or {remedy}",
            table=config.name,
        )

    def expect_part(self, shard: Shard) -> None:
        """Records which rows this rank keeps, if another run may have kept others in the same place."""
        assert self.storage is not None
        capabilities = self.storage.capabilities
        if capabilities.persistent and not capabilities.shared:
            self.part = _part_text(shard, is_replicated=self.layout.is_replicated)

    def note_part(self) -> None:
        """Writes a note into the storage, which is empty yet, of which rows it will hold."""
        if self.storage is not None and self.part is not None:
            write_note(self.storage, PART_NOTE, self.part)
            self.part = None

    def check_whole(self) -> None:
        """Refuses rows of a load that did not end, and rows that another rank kept.

        Raises:
            InterruptedLoadError: naming what was loaded.
            InvalidArgumentError: naming whose rows they are.
        """
        if self.storage is None:
            return
        if self.part is not None:
            self._check_part()
        source = interrupted_load(self.storage)
        if source is None:
            if self.view.is_cut_short:  # it was cleared since
                self.view.end_load(is_whole=True)
            return
        if not self.view.is_cut_short:  # another process began it
            self.view.end_load(is_whole=False)
        name = self.config.name
        raise InterruptedLoadError(
            f"table {name!r}: a load of {source} was cut short, and its storage holds a part of "
            "the rows. Load a snapshot again (sparring train --resume, or container.load), or "
            "begin without rows: open the storage with sparring.open_storage and call clear()",
            table=name,
            source=source,
        )

    def end_load(self) -> None:
        """Native lookups, which wait since `view.begin_load`, go on, or are refused as by
        `check_whole`."""
        storage = self.storage
        try:
            is_whole = storage is None or storage.is_closed or interrupted_load(storage) is None
        except Exception:
            is_whole = False  # it cannot say now; `check_whole` asks again
        self.view.end_load(is_whole)

    def _check_part(self) -> None:
        assert self.storage is not None
        found = read_note(self.storage, PART_NOTE)
        if found is not None and self.part == _ALL and found.startswith(_ALL):
            found = _ALL  # a replica has all rows that a single rank needs
        if found is None and self.part != _ALL and self.storage.size:
            found = "unknown ranks"
        if found is not None and found != self.part and self.storage.size:
            raise InvalidArgumentError(
                f"table {self.config.name!r}: its storage holds {self.storage.size} rows of "
                f"{found}, where {self.part} should be; rows would be missing on some ranks. "
                "Give each number of ranks, and each plan, a place of its own ({world_size} in the "
                "storage's options) and bring the rows over by a snapshot: save with the ranks and the "
                "plan that there were, then load it (sparring train --resume)",
                table=self.config.name,
            )
        if found == self.part:
            self.part = None
        else:
            self.note_part()

    def tier_counters(self) -> list[TierCounters]:
        """Counters of each tier, hottest first; none where the rows are in no stack."""
        if isinstance(self.storage, TieredStorage):
            return self.storage.tier_counters()
        if self.storage is None and self.choice is not None and self.choice.backend == "tiered":
            return [TierCounters(tier.backend) for tier in self.tiers()]
        return []

    def tiers(self) -> list[StorageChoice]:
        """The storages that were chosen: those of a stack, hottest first; nothing where the storage
        was given open."""
        if self.choice is None:
            return []
        if self.choice.backend != "tiered":
            return [self.choice]
        options = TieredOptions.model_validate(dict(self.choice.options))
        return [StorageChoice(tier.backend, tier.options) for tier in options.tiers]

    def hold(self, storage: Storage | None) -> None:
        """Reads from `storage` from now on, natively too; None: no key has a row."""
        if self.storage is not None and storage is not self.storage:
            self.storage.watcher = None
            self.write_log.clearing()
        self.storage = storage
        self.may_refuse = (
            storage is not None and not storage.capabilities.evicts and storage.capacity is not None
        )
        self.written_back = storage if isinstance(storage, SupportsBackground) else None
        self.pushed_to = storage if isinstance(storage, SupportsPush) else None
        if self.written_back is not None:
            self.written_back.use_background(self.background)
        if storage is not None:
            storage.watcher = self.write_log
        if storage is None:
            self.view.detach()
        else:
            self.view.attach(capsule_of(storage), storage.table.state_width)


@dataclass(frozen=True, slots=True, eq=False)
class BlockOf:
    """Which columns of which table an entry has."""

    whole: TableEntry
    columns: ColumnBlock
    number: int


class DividedEntry(TableEntry):
    """A table whose columns are divided: its rows are those of `parts`, and it has no storage."""

    __slots__ = ()

    @property
    def storage(self) -> Storage | None:
        """Refuses: its rows are in the storages of its parts.

        Raises:
            UnsupportedError: always.
        """
        name = self.config.name
        raise UnsupportedError(
            f"table {name!r} is sharded {self.layout.kind}: the blocks of its columns are in "
            f"{len(self.parts)} storages, on several ranks, and none has whole rows. Save a snapshot "
            "(container.save), and read it or load it under another plan; or choose a kind that keeps "
            "rows whole, as row_wise",
            table=name,
        )

    @storage.setter
    def storage(self, storage: Storage | None) -> None:
        assert storage is None

    def hold(self, storage: Storage | None) -> None:
        assert storage is None
        self.may_refuse, self.written_back, self.pushed_to = False, None, None


CHANGED_BYTES = 64 << 20
"""Most memory of the set of changed keys of a table: some 4 to 6 million keys. Beyond it the next
snapshot is a full one."""


class WriteLog:
    """Undo rows for a save that runs, the keys that changed since the last one, and visits."""

    def __init__(
        self, table: str, owners: KeyOwners | None = None, visits: Visits | None = None
    ) -> None:
        self._table = table
        self.visits = visits
        """Of a table whose rows expire."""
        self.owners = owners
        """Of a table that is spread over several ranks; None: this rank keeps all its rows."""
        self.view: CopyOnWriteView | None = None
        self.changed: _native.KeySet | None = None
        """Keys written, erased or evicted since a base; None where they are not counted, were too
        many, or all rows were replaced."""
        self.unpublished: UnpublishedKeys | None = None
        """Keys that change notes have to tell of; None where none are published."""

    @property
    def is_active(self) -> bool:
        return (
            self.view is not None
            or self.changed is not None
            or self.visits is not None
            or self.unpublished is not None
        )

    def check_written(self, keys: Keys) -> None:
        """Refuses keys that another rank owns."""
        if self.owners is not None:
            self.owners.check_written(keys)

    def writing(self, keys: Keys) -> AbstractContextManager[Write]:
        """Surrounds a write to rows of `keys`."""
        if not self.is_active:
            return UNWATCHED
        return _LoggedWrite(self, keys)

    def clearing(self) -> None:
        """All rows are about to be removed, or moved to another storage."""
        self.changed = None
        if self.unpublished is not None:
            self.unpublished.note_everything()
        if self.view is not None:
            self.view.fail(
                InvalidArgumentError(
                    f"table {self._table!r} was cleared, or its rows were moved to another storage, "
                    "while it was being saved; save again",
                    table=self._table,
                )
            )

    def note_changed(self, keys: Keys) -> None:
        """Counts keys that differ from the base now."""
        if self.changed is None:
            return
        self.changed.add(keys)
        if self.changed.memory_bytes > CHANGED_BYTES:
            self.changed = None


class _LoggedWrite:
    """One write to a table."""

    __slots__ = ("_evicted", "_is_erased", "_keys", "_log", "_view")

    def __init__(self, log: WriteLog, keys: Keys) -> None:
        self._log, self._keys = log, keys
        self._view = log.view
        self._evicted: Evicted | None = None
        self._is_erased = False

    def note_evicted(self, evicted: Evicted) -> None:
        self._evicted = evicted if len(evicted) else None

    def note_erased(self) -> None:
        self._is_erased = True

    def __enter__(self) -> Write:
        if self._view is not None:
            self._view.before_write(self._keys)
        return self

    def __exit__(self, *error: object) -> None:
        if self._view is not None:
            self._view.after_write(self._evicted)
        self._log.note_changed(self._keys)
        if self._log.visits is not None:
            self._log.visits.note(self._keys)
        if self._evicted is not None:
            self._log.note_changed(self._evicted.keys)
        unpublished = self._log.unpublished
        if unpublished is not None:
            if self._is_erased:
                unpublished.note_erased(self._keys)
            else:
                unpublished.note_written(self._keys)
            if self._evicted is not None:
                unpublished.note_erased(self._evicted.keys)
