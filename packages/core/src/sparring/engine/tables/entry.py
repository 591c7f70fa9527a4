"""`TableEntry`: one declared table of a rank and its storage, once it is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from sparring import _native
from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.ranks.layout import Layout
from sparring.contracts.ranks.shard_map import KeyOwners, Shard
from sparring.contracts.storage.column_block import ColumnBlock
from sparring.contracts.storage.optional import (
    PART_NOTE,
    Background,
    SupportsBackground,
    SupportsPush,
)
from sparring.contracts.storage.results import Columns
from sparring.contracts.storage.storage import Storage, interrupted_load, read_note, write_note
from sparring.contracts.tables.admission import parse_admission
from sparring.contracts.tables.expiry import parse_expiry
from sparring.contracts.tables.table import TableConfig
from sparring.engine.tables.last_accesses import LastAccesses
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.engine.tables.write_log import WriteLog
from sparring.errors import InterruptedLoadError, InvalidArgumentError, UnsupportedError
from sparring.kernels import functions as kernels
from sparring.kernels.admission_filters import make_filter
from sparring.storage.convert import format_conversion_command
from sparring.storage.native import get_capsule

__all__ = ["TableBlock", "ColumnBlocksEntry", "TableEntry"]

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
        block: TableBlock | None = None,
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
        expiry = parse_expiry(config.expire)
        self.visits = None if expiry is None else LastAccesses(expiry)
        self.layout = layout
        is_alone = layout.is_replicated or layout.world_size == 1
        owners = None if is_alone else KeyOwners(config.name, rank, layout.owners)
        self.write_log = WriteLog(config.name, owners)
        if self.visits is not None:
            self.write_log.add_observer(self.visits)
        self.background = background
        self.may_refuse = False
        """Whether a write may find no room."""
        self.written_back: SupportsBackground | None = None
        """The storage, where it writes in the background."""
        self.pushed_to: SupportsPush | None = None
        """The storage, where it updates its rows itself."""
        self.attach_storage(storage)

    @property
    def _described(self) -> TableConfig:
        return self.config if self.block is None else self.block.whole.config

    @property
    def table_name(self) -> str:
        """Of the declared table whose rows these are."""
        return self._described.name

    @property
    def has_column_blocks(self) -> bool:
        """Whether its columns are divided, and its rows are those of several `parts`."""
        return len(self.parts) > 1

    @property
    def is_first(self) -> bool:
        """Whether rows are counted here, not only in another block of columns of theirs."""
        return self.block is None or self.block.number == 0

    def forget_admission(self) -> None:
        """Forgets which ids were seen."""
        self.admission_filter = make_filter(parse_admission(self.config.admission), self._described)

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
            command = format_conversion_command(
                self.choice.backend, self.choice.options, found, config
            )
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

    def attach_storage(self, storage: Storage | None) -> None:
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
            self.view.attach(get_capsule(storage), storage.table.state_width)


@dataclass(frozen=True, slots=True, eq=False)
class TableBlock:
    """Which columns of which table an entry has."""

    whole: TableEntry
    columns: ColumnBlock
    number: int


class ColumnBlocksEntry(TableEntry):
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

    def attach_storage(self, storage: Storage | None) -> None:
        assert storage is None
        self.may_refuse, self.written_back, self.pushed_to = False, None, None
