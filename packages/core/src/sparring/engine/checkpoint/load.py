"""Loads: ranks agree on a snapshot, and each loads the rows that it owns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sparring import _native
from sparring.collective.coordinator import Coordinator
from sparring.contracts.checkpoint import LoadResult, State
from sparring.contracts.storage.results import Rows
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.engine.checkpoint.container_state import (
    RESERVED_STATES,
    load_container_states,
    read_scalars,
)
from sparring.engine.state import EngineState, Purpose, quiesce
from sparring.engine.tables.entry import TableEntry
from sparring.errors import InterruptedLoadError, InvalidArgumentError, SparringError
from sparring.runtime.pool import Task
from sparring.snapshot.chain import scan_rows
from sparring.snapshot.format.manifest import TableDescription
from sparring.snapshot.reader import Snapshot, open_snapshot
from sparring.storage.load import begin_load as begin_storage_load
from sparring.storage.load import end_load as end_storage_load
from sparring.storage.load import restore

__all__ = ["Load", "load"]

_log = logging.getLogger(__name__)


def load(
    state: EngineState, url: str, tables: Iterable[str] | None, *, is_base: bool, blocking: bool
) -> LoadResult | Task[LoadResult]:
    """Implements `StepContainer.load`."""
    begun = _begin(state, url, tables, is_base)
    if blocking:
        return state.loads.run(begun)
    return state.loads.begin(begun, state.events)


def _begin(state: EngineState, url: str, tables: Iterable[str] | None, is_base: bool) -> Load:
    """Agrees with the other ranks on the snapshot and the tables to load. All ranks must call it.

    Raises:
        SparringError: as `StepContainer.load`; nothing was changed.
    """
    coordinator = Coordinator(state.collective, f"load of {url}, nothing was changed")
    snapshot: Snapshot | None = None
    chosen: list[TableEntry] = []
    error: Exception | None = None
    try:
        quiesce(state, Purpose.REPLACE)
        snapshot = open_snapshot(url)
        chosen = _chosen(state, snapshot, tables)
    except Exception as failure:
        error = failure
    coordinator.agree(error)
    assert snapshot is not None
    names = list(dict.fromkeys(entry.table_name for entry in chosen))
    coordinator.all_equal(
        {"step": snapshot.step, "hash": snapshot.manifest_hash, "tables": names},
        "ranks load different snapshots",
        "pass the same URL and tables on all ranks",
    )
    state.resources.discard()
    state.saves.newest = None
    _start_counting_changes(state, None)
    # A delta would not find its base rows under the former name of a table.
    are_named = all(each.saved_name(snapshot.tables) == each.table_name for each in chosen)
    return Load(state, snapshot, chosen, is_whole=tables is None, is_base=is_base and are_named)


class Load:
    """A load that ranks have agreed on. Call `run` or `give_up`; other ranks wait until then.

    Args:
        state: state of the engine. Until the load is over, nothing else may use its tables and its
            collective.
        snapshot: snapshot to load; the same on all ranks.
        chosen: entries whose rows are loaded.
        is_whole: whether to load counters too.
        is_base: whether to track changed keys after the load.
    """

    def __init__(
        self,
        state: EngineState,
        snapshot: Snapshot,
        chosen: Sequence[TableEntry],
        *,
        is_whole: bool,
        is_base: bool,
    ) -> None:
        self.url = snapshot.url
        self._state = state
        self._snapshot = snapshot
        self._chosen = chosen
        self._is_whole = is_whole
        self._is_base = is_base
        self._reason: BaseException | None = None
        self._ending = threading.Lock()
        self._has_ended = False
        try:
            for entry in chosen:
                entry.view.begin_load()
            self._coordinator = Coordinator(
                state.collective,
                f"load of {self.url}, of which tables may now contain parts (load a snapshot again "
                "before continuing)",
            )
            self._coordinator.start()
        except BaseException:
            for entry in chosen:
                entry.end_load()
            raise

    def run(self) -> LoadResult:
        """Loads rows and counters; may be called on any thread.

        Raises:
            SparringError: as `StepContainer.load`.
            InterruptedLoadError: `stop` was called on some rank.
        """
        try:
            return self._run()
        finally:
            self._end()

    def stop(self, reason: BaseException) -> None:
        """Stops the load after the current chunk of rows; called from another thread.

        Args:
            reason: reason for the message, on this and other ranks.
        """
        self._reason = reason

    def give_up(self, reason: BaseException, *, waits: bool = True) -> None:
        """Aborts the load instead of `run`, and notifies the other ranks. No row was changed on this
        rank.

        Args:
            reason: reason for the message on other ranks.
            waits: whether to wait for other ranks. If False, a waiting call must follow, on any thread,
                before the collective is used.
        """
        self._coordinator.abort(reason, waits=waits)
        self._end()

    def _end(self) -> None:
        with self._ending:
            if self._has_ended:
                return  # another load may have started
            self._has_ended = True
            try:
                for entry in self._chosen:
                    entry.end_load()
            finally:
                self._close_storages()

    def _close_storages(self) -> None:
        """Closes storages whose close waited for the load. Failures are logged."""
        try:
            self._state.at_work.end()
        except Exception as error:
            _log.error(
                "after the load of %s: a storage could not be closed: %s",
                self.url,
                error,
                exc_info=None if isinstance(error, SparringError) else error,
            )

    def _run(self) -> LoadResult:
        state, snapshot = self._state, self._snapshot
        rows: dict[str, int] = {}
        loaded: list[int] = []
        states: Mapping[str, State] = {}
        scalars: Mapping[str, Any] = {}
        take_counters: Callable[[], None] | None = None
        error: Exception | None = None
        try:
            for entry in self._chosen:
                loaded.append(self._load_table(entry))
                if entry.is_first:
                    rows[entry.table_name] = loaded[-1]
            if self._is_whole:
                take_counters = load_container_states(state, snapshot)
            states = _read_user_states(snapshot, state.membership.rank)
            scalars = read_scalars(snapshot)
        except Exception as failure:
            error = failure
        except BaseException as stopped:
            self._coordinator.abort(stopped)
            raise
        self._coordinator.agree(error)
        # Only after all ranks have loaded their rows, because they may share a storage.
        try:
            for entry, num_rows in zip(self._chosen, loaded, strict=True):
                storage = state.tables.open(entry)
                end_storage_load(storage)
                if entry.is_first:
                    rows[entry.table_name] -= self._count_evicted(
                        entry.table_name, storage, num_rows
                    )
        except Exception as failure:
            error = failure
        self._coordinator.agree(error)
        for name in dict.fromkeys(entry.table_name for entry in self._chosen):
            first = state.tables.entry(name)
            first.load_scalars(scalars.get(first.saved_name(snapshot.tables)))
        if take_counters is not None:
            take_counters()
            state.saves.history.append(snapshot.url)
            state.saves.newest = snapshot.url, snapshot.step
        if self._is_base and self._is_whole:
            _start_counting_changes(state, snapshot.url)
        return LoadResult(snapshot.url, snapshot.step, rows, states)

    def _load_table(self, entry: TableEntry) -> int:
        state, snapshot, table = self._state, self._snapshot, entry.config
        self._check_stopped()
        storage = state.tables.open(entry)
        state.at_work.begin([storage])
        # Prefetches in progress read all rows again.
        if state.prefetches.unfinished:
            state.prefetches.note(table.name, None)
        begin_storage_load(storage, snapshot.url)
        if entry.visits is not None:
            entry.visits.forget()
        entry.note_part()
        name, columns = (
            entry.saved_name(snapshot.tables),
            None if entry.block is None else entry.block.columns,
        )
        saved = snapshot.tables[name].config
        if columns is not None:
            saved = columns.table_of(saved)
        num_rows = 0
        for chunk in scan_rows(snapshot, name, self._partitions_of(entry), columns=columns):
            rows: Rows = chunk.rows
            if saved.width != table.width:
                rows = np.zeros((len(chunk), table.width), table.numpy_dtype)
                table.embeddings(rows)[...] = saved.embeddings(chunk.rows)
            restore(storage, chunk.keys, rows, chunk.scores)
            num_rows += len(chunk)
            self._check_stopped()
        return num_rows

    def _count_evicted(self, table: str, storage: Storage, num_rows: int) -> int:
        """Returns how many of the loaded rows a storage has evicted, and warns of them."""
        if not storage.capabilities.evicts:
            return 0
        count = max(num_rows - storage.size, 0)
        if count:
            _log.warning(
                "load of %s: %d of %d rows of table %r did not fit into its storage, which evicted them; "
                "they read as initial values. Increase its capacity or budget_bytes to load all rows",
                self.url,
                count,
                num_rows,
                table,
                extra={"table": table},
            )
        return count

    def _partitions_of(self, entry: TableEntry) -> list[int] | None:
        """Returns the partitions that this rank reads; None: all."""
        membership = self._state.membership
        if membership.world_size == 1 or entry.layout.is_replicated:
            return None
        partitions: list[int] = entry.layout.partitions_of(membership.rank).tolist()
        return partitions

    def _check_stopped(self) -> None:
        """Raises if the load was stopped; called between chunks."""
        self._coordinator.check()
        if self._reason is not None:
            raise InterruptedLoadError(
                f"the load of {self.url} was stopped ({self._reason!r}), and tables may contain parts "
                "of it; load a snapshot again before continuing",
                source=self.url,
            )


def _start_counting_changes(state: EngineState, base: str | None) -> None:
    """Starts tracking the keys that change since the snapshot `base`; None: stops it."""
    state.saves.base = base
    for entry in state.tables.entries.values():
        entry.write_log.changed = None if base is None else _native.KeySet()


def _chosen(
    state: EngineState, snapshot: Snapshot, tables: Iterable[str] | None
) -> list[TableEntry]:
    """Returns the entries to load, after checking them against the snapshot."""
    known = snapshot.tables
    if tables is None:
        names = list(state.tables.declared)
        read = {entry.saved_name(known) for entry in state.tables.declared.values()}
        more = sorted(set(known) - read)
        if more:
            raise InvalidArgumentError(
                f"snapshot {snapshot.url} has tables that are not declared: {', '.join(more)}; "
                "declare them, or specify the tables to load: load(url, tables=…)",
                tables=more,
            )
        if RESERVED_STATES[0] not in snapshot.state_names(0):
            raise InvalidArgumentError(
                f"snapshot {snapshot.url} has rows but no counters of a training, like the result of "
                f"`sparring import`; specify the tables: load(url, tables={sorted(known)})",
                tables=sorted(known),
            )
    else:
        names = list(tables)
    chosen: list[TableEntry] = []
    for name in names:
        entry = state.tables.entry(name)
        saved_name = entry.saved_name(known)
        if saved_name not in known:
            raise InvalidArgumentError(
                f"snapshot {snapshot.url} has no table {name!r}; it has "
                f"{', '.join(sorted(known)) or 'none'}. Specify the tables to load: "
                "load(url, tables=…)",
                table=name,
            )
        saved, declared = known[saved_name], entry.config
        if saved_name != name:
            _log.warning(
                "load of %s: the snapshot has no table %r; its rows are read from the table with the "
                "former name %r",
                snapshot.url,
                name,
                saved_name,
                extra={"table": name},
            )
            declared = replace(declared, name=saved_name)
        if _loads_embeddings_only(declared, saved):
            declared = declared.with_state(saved.state_width)
        saved.check(declared)
        _warn_of_other_initial_values(saved, entry.config)
        chosen.extend(entry.parts)
    return chosen


def _loads_embeddings_only(table: TableConfig, saved: TableDescription) -> bool:
    """Whether only embeddings are loaded, because no optimizer has set a state yet."""
    return table.state_width == 0 and not table.state_method and saved.state_width > 0


def _warn_of_other_initial_values(saved: TableDescription, table: TableConfig) -> None:
    declared = TableDescription.of(table).extra
    for name in ("seed", "initializer"):
        if name in saved.extra and saved.extra[name] != declared[name]:
            _log.warning(
                "table %r was saved with %s %s and is declared with %s: keys without a row get other "
                "initial values than in the saved training",
                table.name,
                name,
                saved.extra[name],
                declared[name],
                extra={"table": table.name},
            )


def _read_user_states(snapshot: Snapshot, rank: int) -> Mapping[str, State]:
    """Returns the states that were passed to `save`; this rank's state if it had a separate one."""
    found: dict[str, State] = {}
    for each in dict.fromkeys((0, rank)):
        if each >= snapshot.world_size:
            continue
        for name in snapshot.state_names(each):
            if name not in RESERVED_STATES:
                state = snapshot.state(name, rank=each)
                found[name] = State(state.values, state.arrays, is_of_rank=each > 0)
    return found
