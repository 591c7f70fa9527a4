"""`TableEntry`: one declared table of a rank, and its storage after it was opened."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
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

__all__ = ["TableBlock", "ColumnBlocksEntry", "TableEntry", "TableScalars"]

_ALL = "all partitions"


def _part_text(shard: Shard, *, is_replicated: bool) -> str:
    # If only one of several ranks has rows, it is not a replica.
    if shard.world_size == 1:
        return _ALL
    if is_replicated:
        return f"{_ALL} (one of {shard.world_size} replicas)"
    digest = xxhash.xxh3_64_hexdigest(np.ascontiguousarray(shard.partitions, "<i8").tobytes())
    return f"rank {shard.rank} of {shard.world_size} (partitions {digest})"


@dataclass(frozen=True, slots=True)
class TableScalars:
    """State of an optimizer for a table as a whole, such as its number of steps. It belongs to the rows,
    which have the state per row: a new optimizer continues it."""

    method: str
    """Name of the update method or framework optimizer."""
    read: Callable[[], Mapping[str, Any]]
    """Returns the values by name."""
    write: Callable[[Mapping[str, Any] | None], None] | None = None
    """Replaces the values of the optimizer, after other rows were loaded; None: they are unknown. Without
    this function, the values were loaded, and no optimizer uses them yet; they are unknown after the next
    step."""


class TableEntry:
    """A declared table, and its storage after it was opened."""

    __slots__ = (
        "admission_filter",
        "background",
        "block",
        "choice",
        "config",
        "embedding",
        "former_name",
        "initial_state",
        "initializer",
        "kernels",
        "layout",
        "may_refuse",
        "num_not_admitted",
        "part",
        "parts",
        "pushed_to",
        "scalars",
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
        """Block of columns that this entry contains; None if it contains all columns of its table."""
        self.parts: tuple[TableEntry, ...] = (self,)
        """Entries that have the rows: this entry, or the blocks of a table that is sharded by
        columns."""
        self.initial_state: npt.NDArray[Any] | None = None
        self.former_name: str | None = None
        """Name of the table in older snapshots; see `StepContainer.declare`."""
        self.scalars: TableScalars | None = None
        """State of the optimizer for the table as a whole; None if it is unknown."""
        self.forget_admission()
        self.num_not_admitted = 0
        self.kernels: KernelSet | None = None
        """Kernels of the device on which lookups and steps keep rows; None for host memory."""
        self.was_probed = False
        """Whether the storage was searched for rows of an earlier process."""
        self.part: str | None = None
        """Text that `note_part` has to write; None after the storage contains it."""
        self.initializer = kernels.initializer_spec(self._described)
        """Initializer of the whole table, because initial values and rounding are functions of its name
        and its columns."""
        own = self.initializer if block is None else kernels.initializer_spec(config)
        self.view = _native.TableView(config.dtype, own)
        self.embedding = Columns(0, config.embedding_width)
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
        """Whether a write may raise because the storage is full."""
        self.written_back: SupportsBackground | None = None
        """The storage, if it writes in the background."""
        self.pushed_to: SupportsPush | None = None
        """The storage, if it updates its rows itself."""
        self.attach_storage(storage)

    @property
    def _described(self) -> TableConfig:
        return self.config if self.block is None else self.block.whole.config

    @property
    def table_name(self) -> str:
        """Name of the declared table of these rows."""
        return self._described.name

    def saved_name(self, saved: Container[str]) -> str:
        """Returns the name of this table in a snapshot.

        Args:
            saved: names of the snapshot's tables.
        """
        name = self.table_name
        if name not in saved and self.former_name is not None and self.former_name in saved:
            return self.former_name
        return name

    @property
    def has_column_blocks(self) -> bool:
        """Whether the table is sharded by columns, with several `parts`."""
        return len(self.parts) > 1

    @property
    def is_first(self) -> bool:
        """Whether this entry counts the table's rows: a whole table, or its first block of columns."""
        return self.block is None or self.block.number == 0

    def forget_admission(self) -> None:
        """Replaces the admission filter by an empty one."""
        self.admission_filter = make_filter(parse_admission(self.config.admission), self._described)

    def check_same_storage(self, storage: StorageChoice | Storage | None) -> None:
        """Checks the storage of a second declaration.

        Args:
            storage: storage of the second declaration; None is always accepted.

        Raises:
            InvalidArgumentError: the table was declared with another storage.
        """
        declared = self.storage if self.choice is None else self.choice
        if storage is None or storage is declared or storage == declared:
            return
        raise InvalidArgumentError(
            f"declare: table {self.config.name!r} is already declared with {declared}, found {storage}; "
            "declare it once, or leave the storage out the second time",
            table=self.config.name,
        )

    def check_state(self, config: TableConfig) -> None:
        """Checks that the stored rows do not have the state of another optimizer than `config`.

        Args:
            config: the table with the state of the new optimizer.

        Raises:
            InvalidArgumentError: they do. The message contains the call or the command to run.
        """
        storage, method = self.storage, config.state_method or "the optimizer"
        if storage is None:
            return
        # The first optimizer becomes the owner of a storage that was passed in without a method.
        found = self.config if self.choice is None else storage.table
        if not found.has_other_state(config):
            return
        if self.choice is not None and not (storage.size and found.state_width):
            return
        if self.choice is None:
            whose = f", {config.state_method!r}" if config.state_method else ""
            remedy = (
                f"pass one that was opened for TableConfig.with_state({config.state_width}{whose})"
            )
        elif storage.capabilities.persistent:
            command = format_conversion_command(
                self.choice.backend, self.choice.options, found, config
            )
            remedy = f"convert it, which keeps the embeddings and resets their state: {command}"
        else:
            remedy = (
                f"call StepContainer.drop_state({self.table_name!r}) first, which keeps embeddings and "
                "resets their state"
            )
        given = "the storage passed in" if self.choice is None else "its storage"
        raise InvalidArgumentError(
            f"table {config.name!r}: {given} has {storage.size} rows with {found.state_width} "
            f"elements of state of {found.state_method or 'an unknown optimizer'}, but {method} needs "
            f"{config.state_width} elements; use the same kind of optimizer, or {remedy}",
            table=config.name,
        )

    def attach_scalars(self, scalars: TableScalars) -> None:
        """Makes an optimizer the owner of `scalars`, which it continues.

        Args:
            scalars: functions of the optimizer. `TableScalars.write` is called with the values of the
                former optimizer, or with None if the rows have state, but their values are unknown.
        """
        assert scalars.write is not None
        before = self.scalars
        is_unknown = before is None and any(
            part.storage is not None
            and part.pushed_to is None  # the storage counts the steps
            and part.storage.size
            and part.scalars is None
            for part in self.parts
        )
        self.scalars = scalars
        if before is not None and before.method == scalars.method:
            scalars.write(before.read())
        elif is_unknown and self.config.state_width:
            scalars.write(None)

    def forget_unowned_scalars(self) -> None:
        """Forgets loaded scalars that no optimizer uses, because a step makes them outdated."""
        if self.scalars is not None and self.scalars.write is None:
            self.scalars = None

    def save_scalars(self) -> dict[str, Any] | None:
        """Returns the numbers of `scalars` as a JSON value for `load_scalars`; None if they are
        unknown."""
        if self.scalars is None:
            return None
        values = {}
        for name, value in self.scalars.read().items():
            # Arrays and tensors of one number become this number.
            number = value.item() if hasattr(value, "item") else value
            if isinstance(number, (bool, int, float)):
                values[name] = number
        return {"method": self.scalars.method, "values": values}

    def load_scalars(self, saved: Mapping[str, Any] | None) -> None:
        """Replaces `scalars`, after rows with the state of an optimizer were loaded.

        Args:
            saved: result of `save_scalars` for these rows; None if it was not saved.
        """
        known = self.scalars
        if known is not None and known.write is not None:
            is_same = saved is not None and saved["method"] == known.method
            known.write(saved["values"] if is_same and saved is not None else None)
        elif saved is None or not self.config.state_method:
            self.scalars = None
        else:
            values = dict(saved["values"])
            self.scalars = TableScalars(saved["method"], lambda: values)

    def expect_part(self, shard: Shard) -> None:
        """Records which rows this rank stores, if the storage may contain rows of an earlier run.

        Args:
            shard: the part of the table that this rank stores.
        """
        assert self.storage is not None
        capabilities = self.storage.capabilities
        if capabilities.persistent and not capabilities.shared:
            self.part = _part_text(shard, is_replicated=self.layout.is_replicated)

    def note_part(self) -> None:
        """Writes a note into the empty storage that describes the rows it will contain."""
        if self.storage is not None and self.part is not None:
            write_note(self.storage, PART_NOTE, self.part)
            self.part = None

    def check_whole(self) -> None:
        """Checks that the storage contains neither a part of a load nor rows of another rank.

        Raises:
            InterruptedLoadError: a load was interrupted; the message names its snapshot.
            InvalidArgumentError: the rows belong to other ranks, which the message names.
        """
        if self.storage is None:
            return
        if self.part is not None:
            self._check_part()
        source = interrupted_load(self.storage)
        if source is None:
            if self.view.is_cut_short:  # the storage was cleared since
                self.view.end_load(is_whole=True)
            return
        if not self.view.is_cut_short:  # another process started the load
            self.view.end_load(is_whole=False)
        name = self.config.name
        raise InterruptedLoadError(
            f"table {name!r}: a load of {source} was cut short, and its storage contains only a part "
            "of the rows. Load a snapshot again (sparring train --resume, or container.load), or "
            "start without rows: open the storage with sparring.open_storage and call clear()",
            table=name,
            source=source,
        )

    def end_load(self) -> None:
        """Lets native lookups that have waited since `view.begin_load` continue, or raise like
        `check_whole`."""
        storage = self.storage
        try:
            is_whole = storage is None or storage.is_closed or interrupted_load(storage) is None
        except Exception:
            is_whole = False  # unknown because of the error; `check_whole` checks again
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
                f"table {self.config.name!r}: its storage contains {self.storage.size} rows of "
                f"{found}, but this rank needs {self.part}; rows would be missing on some ranks. "
                "Use a separate location for each number of ranks and each plan ({world_size} in the "
                "storage's options), and transfer the rows with a snapshot: save with the previous ranks "
                "and plan, then load it (sparring train --resume)",
                table=self.config.name,
            )
        if found == self.part:
            self.part = None
        else:
            self.note_part()

    def attach_storage(self, storage: Storage | None) -> None:
        """Sets the storage of the entry, also for native lookups.

        Args:
            storage: an open storage of the table; with None, no key has a row.
        """
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
    """Block of columns of a table that an entry contains."""

    whole: TableEntry
    columns: ColumnBlock
    number: int


class ColumnBlocksEntry(TableEntry):
    """A table that is sharded by columns. Its rows are in its `parts`, and it has no storage."""

    __slots__ = ()

    @property
    def storage(self) -> Storage | None:
        """Not supported, because the rows are in the storages of the parts.

        Raises:
            UnsupportedError: always.
        """
        name = self.config.name
        raise UnsupportedError(
            f"table {name!r} is sharded {self.layout.kind}: the blocks of its columns are in "
            f"{len(self.parts)} storages on several ranks, and none has whole rows. Save a snapshot "
            "(container.save), and read it or load it under another plan; or choose a kind that does not "
            "split rows, such as row_wise",
            table=name,
        )

    @storage.setter
    def storage(self, storage: Storage | None) -> None:
        assert storage is None

    def attach_storage(self, storage: Storage | None) -> None:
        assert storage is None
        self.may_refuse, self.written_back, self.pushed_to = False, None, None
