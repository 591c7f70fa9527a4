"""`TableContainer`, the tables of one rank: their declaration, optimizer state and size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.ranks.layout import Layout, Transfer
from sparring.contracts.storage.storage import Storage
from sparring.contracts.storage.tiers import TierCounters
from sparring.contracts.tables.table import TableConfig
from sparring.engine.lookup.transfer import find_transfer
from sparring.engine.optimizer_state import check_state, drop_state, set_state
from sparring.engine.state import EngineState, Purpose, quiesce
from sparring.engine.tables.entry import TableEntry
from sparring.engine.tables.storage_choice import StorageChoice

__all__ = ["TableContainer"]


class TableContainer:
    """The tables of one rank. `StepContainer` adds lookups, steps and snapshots."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        """State that the modules of the engine and `sparring.adapter` share."""

    def check_open(self) -> None:
        """Raises `ClosedError` if the container was closed, or if this process was forked after it was
        created."""
        self.state.check_open()

    @property
    def own_device(self) -> str | None:
        """GPU that ``cuda`` means on this rank: the one with its local rank, or the only visible one.
        None on a single rank, where ``cuda`` means the current GPU."""
        return self.state.tables.own_device

    def declare(
        self,
        table: TableConfig,
        storage: StorageChoice | Storage | None = None,
        *,
        former_name: str | None = None,
    ) -> None:
        """Adds a table. Its storage is opened when the first row may be written, because the optimizer
        determines the width of the rows.

        Args:
            table: configuration of the table. Declaring an equal table again has no effect.
            storage: backend to open, or an open storage, which the container then owns. None: ``hkv``
                with its defaults, or the storage of an earlier declaration.
            former_name: name of the table in older snapshots. `load` reads its rows from there, with a
                warning, if a snapshot has no table with the name in `table`.

        Raises:
            InvalidArgumentError: a different table with this name exists, the table was declared with
                another storage, or `storage` was opened for another table.
        """
        self.check_open()
        self.state.tables.declare(table, storage)
        if former_name is not None:
            whole = self.entry(table.name)
            for entry in (whole, *whole.parts):
                entry.former_name = former_name

    @property
    def tables(self) -> Mapping[str, TableConfig]:
        """Declared tables by name."""
        return {name: entry.config for name, entry in list(self.state.tables.declared.items())}

    def layout(self, table: str) -> Layout:
        """Returns the ranks that own the rows of a table.

        Args:
            table: name of a declared table.

        Raises:
            UnknownTableError: `table` was not declared.
        """
        return self.entry(table).layout

    def transfer(self, table: str) -> tuple[Transfer, str]:
        """Returns how bags of a table are transferred, and the reason: ``pooled`` by the owners of
        their rows, or as ``rows``.

        Args:
            table: name of a declared table.
        """
        return find_transfer(self.state, table)

    def check_plan(self) -> None:
        """Checks that all tables of the plan were declared, as the first write does.

        Raises:
            InvalidArgumentError: the plan contains a table that was not declared.
        """
        self.state.tables.layouts.check_tables(list(self.tables))

    def set_state(self, table: str, initial_state: npt.NDArray[Any], method: str = "") -> None:
        """Sets the optimizer state that is stored after each embedding of `table`.

        Args:
            initial_state: ``(state_width,)`` of the computing dtype: the state of a new row.
            method: name of the update method or framework optimizer that owns the state.

        Raises:
            InvalidArgumentError: the table has rows of another width or with the state of another
                method.
        """
        self.check_open()
        quiesce(self.state, Purpose.RESHAPE)
        set_state(self.state, self.entry(table), np.asarray(initial_state), method)

    def check_state(self, table: str, state_width: int, method: str = "") -> None:
        """Raises the errors of `set_state` without setting the state.

        Args:
            table: name of a declared table.
            state_width: number of elements of state per row.
            method: as for `set_state`.
        """
        self.check_open()
        check_state(self.entry(table), state_width, method)

    def drop_state(self, table: str) -> None:
        """Removes the optimizer state from all rows of a table on this rank and keeps the embeddings.

        The next optimizer starts from its initial state.

        Args:
            table: name of a declared table.

        Raises:
            UnsupportedError: the user opened the storage, or its rows outlive the process. In the
                second case the message contains the ``sparring convert`` command to run.
        """
        self.check_open()
        quiesce(self.state, Purpose.RESHAPE)
        drop_state(self.state, self.entry(table))

    def storage(self, table: str) -> Storage:
        """Returns this rank's shard of a table, and opens it if necessary.

        Args:
            table: name of a declared table.

        Raises:
            UnknownTableError: `table` was not declared.
            InterruptedLoadError: a load was interrupted, and the storage contains a part of a snapshot.
            InvalidArgumentError: the storage contains rows of another rank.
        """
        self.check_open()
        quiesce(self.state, Purpose.INSPECT)
        return self.state.tables.storage(table)

    def num_rows(self, table: str) -> int:
        """Returns the number of rows of a table on this rank. If the table is sharded by columns, this
        is the number of rows in the largest of the rank's blocks.

        Args:
            table: name of a declared table.

        Raises:
            UnknownTableError: `table` was not declared.
        """
        return max(map(self._num_part_rows, self._counted_parts(table)))

    def num_rows_to_sum(self, table: str) -> int:
        """Returns the number of rows that this rank contributes to the total over ranks, which counts a
        row once if its columns are on several ranks: the rows of the table's first block.

        Args:
            table: name of a declared table.

        Raises:
            UnknownTableError: `table` was not declared.
        """
        return self._num_part_rows(self._counted_parts(table)[0])

    def _counted_parts(self, table: str) -> Sequence[TableEntry]:
        self.check_open()
        quiesce(self.state, Purpose.COUNT)
        return self.entry(table).parts

    def _num_part_rows(self, entry: TableEntry) -> int:
        self.state.tables.probe_existing_rows(entry)
        return 0 if entry.storage is None else entry.storage.size

    def table_bytes(self, table: str) -> int:
        """Returns the memory of a table on this rank, in bytes; 0 if its storage is not open yet.

        Args:
            table: name of a declared table.

        Raises:
            UnknownTableError: `table` was not declared.
        """
        self.check_open()
        quiesce(self.state, Purpose.INSPECT)
        storages = [part.storage for part in self.entry(table).parts]
        return sum(each.memory_bytes for each in storages if each is not None)

    def num_not_admitted(self, table: str) -> int:
        """Returns the number of gradients that the table's admission filter dropped on this rank.

        Args:
            table: name of a declared table.

        Raises:
            UnknownTableError: `table` was not declared.
        """
        quiesce(self.state, Purpose.INSPECT)
        return self.entry(table).parts[0].num_not_admitted

    def num_forgotten(self, table: str) -> int:
        """Returns how many ids the table's full admission filter removed or did not count here.

        Args:
            table: name of a declared table.

        Raises:
            UnknownTableError: `table` was not declared.
        """
        quiesce(self.state, Purpose.INSPECT)
        made = self.entry(table).parts[0].admission_filter
        return 0 if made is None else int(made.num_forgotten)

    def tier_counters(self, table: str) -> list[TierCounters]:
        """Returns the counters of each tier of a table on this rank, hottest first; an empty list if
        the storage is not a stack.

        Args:
            table: name of a declared table.
        """
        self.check_open()
        quiesce(self.state, Purpose.INSPECT)
        return self.state.tables.tier_counters(table)

    def tiers(self, table: str) -> list[StorageChoice]:
        """Returns the storages that were chosen for a table, hottest first; an empty list if its
        storage was already open.

        Args:
            table: name of a declared table.
        """
        return self.state.tables.tiers(table)

    def entry(self, table: str) -> TableEntry:
        """Returns the entry of a declared table.

        Args:
            table: name of a declared table.

        Raises:
            UnknownTableError: `table` was not declared.
        """
        return self.state.tables.entry(table)

    def entries(self) -> list[TableEntry]:
        """Returns all entries that have rows: tables, and the blocks of tables that are sharded by
        columns."""
        return list(self.state.tables.entries.values())

    def check_readable(self, tables: Sequence[str]) -> None:
        """Waits until `tables` may be read.

        If `reads_directly` is False, errors of the tables are not raised here but by the lookup, on all
        ranks.

        Args:
            tables: names of declared tables.

        Raises:
            ClosedError: the container or the storage of a table was closed.
            BackgroundError: a load in the background failed.
            InterruptedLoadError: a table contains a part of a snapshot.
        """
        state = self.state
        state.check_open()
        if not self.reads_directly(tables):
            quiesce(state, Purpose.MEET)
            return
        quiesce(state, Purpose.READ)
        for table in tables:
            entry = state.tables.declared.get(table) or state.tables.entry(table)
            state.tables.check_readable(entry)

    def reads_directly(self, tables: Iterable[str]) -> bool:
        """Whether batches may be pooled directly from tables, because all their rows are on this rank.

        Args:
            tables: names of declared tables.
        """
        return self.state.collective.world_size == 1 or all(
            self.entry(table).config.is_replicated for table in tables
        )
