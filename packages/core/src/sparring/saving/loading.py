"""How a rank takes over what it owns of a snapshot."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sparring.declared_table import DeclaredTable
from sparring.errors import InterruptedLoadError, InvalidArgumentError, SparringError
from sparring.saving.agreeing import Rounds, agree, check_alike
from sparring.saving.container_state import OWN_STATES, take_container_states
from sparring.saving.requests import Loaded, State
from sparring.snapshot import Snapshot, TableDescription, open_snapshot
from sparring.storage.contract import Rows
from sparring.table import TableConfig

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["Load", "begin_load"]

_log = logging.getLogger(__name__)


def begin_load(
    container: StepContainer, url: str, tables: Iterable[str] | None, is_base: bool
) -> Load:
    """What comes before the first row: ranks agree on what is to be loaded. All ranks call it.

    Raises:
        SparringError: as `StepContainer.load`; nothing was changed.
    """
    collective = container.collective
    snapshot: Snapshot | None = None
    chosen: list[DeclaredTable] = []
    error: Exception | None = None
    try:
        container.join_ahead()
        container.loads.check()
        container.flushes.join()
        container.saves.join()
        snapshot = open_snapshot(url)
        chosen = _chosen(container, snapshot, tables)
    except Exception as failure:
        error = failure
    agree(collective, f"load of {url}, nothing was changed", error)
    assert snapshot is not None
    names = ", ".join(entry.config.name for entry in chosen)
    check_alike(
        collective,
        "snapshots to load",
        f"that of step {snapshot.step} with the hash {snapshot.manifest_hash}, tables {names}",
    )
    container.discard()
    container.saves.rebase(None)
    return Load(container, snapshot, chosen, is_whole=tables is None, is_base=is_base)


class Load:
    """A load that ranks have agreed on. `run` or `give_up` must follow: ranks meet until then.

    Args:
        container: nothing but this may use its tables and its collective until the load is over.
        snapshot: the same on all ranks.
        chosen: the tables whose rows are loaded.
        is_whole: take over counters too.
        is_base: count from the end on which keys change.
    """

    def __init__(
        self,
        container: StepContainer,
        snapshot: Snapshot,
        chosen: Sequence[DeclaredTable],
        *,
        is_whole: bool,
        is_base: bool,
    ) -> None:
        self.url = snapshot.url
        self._container = container
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
            self._rounds = Rounds(container.collective, self._what)
        except BaseException:
            for entry in chosen:
                entry.end_load()
            raise

    def run(self) -> Loaded:
        """Takes over rows and counters; on any thread.

        Raises:
            SparringError: as `StepContainer.load`.
            InterruptedLoadError: `stop` was called, here or on another rank.
        """
        try:
            return self._run()
        finally:
            self._end()

    def stop(self, reason: BaseException) -> None:
        """Ends it between two chunks of rows; from another thread.

        Args:
            reason: for the message, here and on other ranks.
        """
        self._reason = reason

    def give_up(self, reason: BaseException) -> None:
        """In place of `run`: other ranks are told. No row was changed on this one."""
        self._rounds.leave(reason)
        self._end()

    def begin_to_give_up(self, reason: BaseException) -> None:
        """As `give_up`, which must follow before anything uses the collective, but waits for no rank;
        from any thread."""
        self._rounds.begin_to_leave(reason)
        self._end()

    def forget(self) -> None:
        """In a forked child, where nobody ends it: native lookups are refused until `check_whole` has
        seen that a table is whole."""
        for entry in self._chosen:
            entry.view.end_load(is_whole=False)

    def _end(self) -> None:
        with self._ending:
            if self._has_ended:
                return  # another load may have begun
            self._has_ended = True
            try:
                for entry in self._chosen:
                    entry.end_load()
            finally:
                self._close_storages()

    def _close_storages(self) -> None:
        """Those that somebody wanted closed meanwhile. Why the load failed is not hidden by it."""
        try:
            self._container.at_work.end()
        except Exception as error:
            _log.error(
                "after the load of %s: a storage could not be closed: %s",
                self.url,
                error,
                exc_info=None if isinstance(error, SparringError) else error,
            )

    @property
    def _what(self) -> str:
        return (
            f"load of {self.url}, of which tables may hold parts now (load one again before going "
            "on)"
        )

    def _run(self) -> Loaded:
        container, snapshot = self._container, self._snapshot
        rows: dict[str, int] = {}
        states: Mapping[str, State] = {}
        take_counters: Callable[[], None] | None = None
        error: Exception | None = None
        try:
            for entry in self._chosen:
                rows[entry.config.name] = self._load_table(entry)
            if self._is_whole:
                take_counters = take_container_states(container, snapshot)
            states = _states(snapshot, container.collective.rank)
        except Exception as failure:
            error = failure
        except BaseException as stopped:
            self._rounds.leave(stopped)
            raise
        self._rounds.end(error)
        # All ranks have their rows: they may lie in one place.
        try:
            for entry in self._chosen:
                container.opened(entry).end_load()
        except Exception as failure:
            error = failure
        agree(container.collective, self._what, error)
        if take_counters is not None:
            take_counters()
            container.saves.line.append(snapshot.url)
        if self._is_base and self._is_whole:
            container.saves.rebase(snapshot.url)
        return Loaded(snapshot.url, snapshot.step, rows, states)

    def _load_table(self, entry: DeclaredTable) -> int:
        container, snapshot, table = self._container, self._snapshot, entry.config
        self._go_on()
        storage = container.opened(entry)
        container.at_work.begin([storage])
        # What is being looked up ahead is read again.
        container.aheads.note(table.name, None)
        storage.begin_load(snapshot.url)
        entry.note_part()
        saved = snapshot.tables[table.name].config
        num_rows = 0
        for chunk in snapshot.chunks(table.name, self._partitions_of(table)):
            rows: Rows = chunk.rows
            if saved.width != table.width:
                rows = np.zeros((len(chunk), table.width), table.numpy_dtype)
                table.embeddings(rows)[...] = saved.embeddings(chunk.rows)
            storage.restore(chunk.keys, rows, chunk.scores)
            num_rows += len(chunk)
            self._go_on()
        return num_rows

    def _partitions_of(self, table: TableConfig) -> list[int] | None:
        """Those that this rank reads; None: all."""
        collective = self._container.collective
        if collective.world_size == 1 or table.is_replicated:
            return None
        shards = self._container.rendezvous.shard_map()
        partitions: list[int] = shards.partitions_of(collective.rank).tolist()
        return partitions

    def _go_on(self) -> None:
        """Called between pieces of work."""
        self._rounds.go_on()
        if self._reason is not None:
            raise InterruptedLoadError(
                f"the load of {self.url} was stopped ({self._reason!r}), and tables may hold parts "
                "of it; load a snapshot again before going on",
                source=self.url,
            )


def _chosen(
    container: StepContainer, snapshot: Snapshot, tables: Iterable[str] | None
) -> list[DeclaredTable]:
    """The tables to load. All that can be refused is refused here."""
    known = snapshot.tables
    if tables is None:
        names = list(container.tables)
        more = sorted(set(known) - set(names))
        if more:
            raise InvalidArgumentError(
                f"snapshot {snapshot.url} has tables that are not declared: {', '.join(more)}; "
                "declare them, or name the tables to load: load(url, tables=…)",
                tables=more,
            )
    else:
        names = list(tables)
    chosen = []
    for name in names:
        entry = container.entry(name)
        if name not in known:
            raise InvalidArgumentError(
                f"snapshot {snapshot.url} has no table {name!r}; it has "
                f"{', '.join(sorted(known)) or 'none'}. Name the tables to load: "
                "load(url, tables=…)",
                table=name,
            )
        if not _are_embeddings_wanted(entry.config, known[name]):
            known[name].check(entry.config)
        else:
            known[name].check(entry.config.with_state(known[name].state_width))
        _warn_of_other_initial_values(known[name], entry.config)
        chosen.append(entry)
    return chosen


def _are_embeddings_wanted(table: TableConfig, saved: TableDescription) -> bool:
    """Where no optimizer said that it needs state, none is loaded."""
    return table.state_width == 0 and not table.state_method and saved.state_width > 0


def _warn_of_other_initial_values(saved: TableDescription, table: TableConfig) -> None:
    declared = TableDescription.of(table).extra
    for name in ("seed", "initializer"):
        if name in saved.extra and saved.extra[name] != declared[name]:
            _log.warning(
                "table %r was saved with %s %s and is declared with %s: keys that have no row yet "
                "begin with other values than they would have",
                table.name,
                name,
                saved.extra[name],
                declared[name],
            )


def _states(snapshot: Snapshot, rank: int) -> Mapping[str, State]:
    """Those that were given to `save`: of this rank where it had its own."""
    found: dict[str, State] = {}
    for each in dict.fromkeys((0, rank)):
        if each >= snapshot.world_size:
            continue
        for name in snapshot.state_names(each):
            if name not in OWN_STATES:
                state = snapshot.state(name, rank=each)
                found[name] = State(state.values, state.arrays, is_of_rank=each > 0)
    return found
