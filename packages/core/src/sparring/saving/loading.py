"""How a rank takes over what it owns of a snapshot."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from sparring.declared_table import DeclaredTable
from sparring.errors import InvalidArgumentError
from sparring.saving.agreeing import Rounds, agree, check_alike
from sparring.saving.container_state import OWN_STATES, take_container_states
from sparring.saving.requests import Loaded, State
from sparring.snapshot import Snapshot, TableDescription, open_snapshot
from sparring.storage.contract import Rows
from sparring.table import TableConfig

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["load_snapshot"]

_log = logging.getLogger(__name__)


def load_snapshot(
    container: StepContainer, url: str, tables: Iterable[str] | None, is_base: bool
) -> Loaded:
    """As `StepContainer.load`."""
    collective = container.collective
    snapshot: Snapshot | None = None
    chosen: list[DeclaredTable] = []
    error: Exception | None = None
    try:
        container.join_ahead()
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
    rows: dict[str, int] = {}
    rounds = Rounds(collective, f"load of {url}, {_HALF_LOADED}")
    try:
        for entry in chosen:
            rows[entry.config.name] = _load_table(container, entry, snapshot, rounds)
        if tables is None:
            take_container_states(container, snapshot)
        states = _states(snapshot, collective.rank)
    except Exception as failure:
        error = failure
    except BaseException as stopped:
        rounds.leave(stopped)
        raise
    rounds.end(error)
    # All ranks have their rows: they may lie in one place.
    try:
        for entry in chosen:
            container.opened(entry).end_load()
    except Exception as failure:
        error = failure
    agree(collective, f"load of {url}, {_HALF_LOADED}", error)
    if is_base and tables is None:
        container.saves.rebase(snapshot.url)
    return Loaded(snapshot.url, snapshot.step, rows, states)


_HALF_LOADED = "of which tables may hold parts now (load one again before going on)"


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


def _load_table(
    container: StepContainer, entry: DeclaredTable, snapshot: Snapshot, rounds: Rounds
) -> int:
    table = entry.config
    storage = container.opened(entry)
    # What is being looked up ahead is read again.
    container.aheads.note(table.name, None)
    storage.begin_load(snapshot.url)
    entry.note_part()
    collective = container.collective
    partitions = None
    if collective.world_size > 1 and not table.is_replicated:
        partitions = container.rendezvous.shard_map().partitions_of(collective.rank).tolist()
    saved = snapshot.tables[table.name].config
    num_rows = 0
    for chunk in snapshot.chunks(table.name, partitions):
        rows: Rows = chunk.rows
        if saved.width != table.width:
            rows = np.zeros((len(chunk), table.width), table.numpy_dtype)
            table.embeddings(rows)[...] = saved.embeddings(chunk.rows)
        storage.restore(chunk.keys, rows, chunk.scores)
        num_rows += len(chunk)
        rounds.go_on()
    return num_rows


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
