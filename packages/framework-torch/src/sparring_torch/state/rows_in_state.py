"""Saves rows in the `state_dict` of modules: the rows themselves, or the name of a snapshot.

    one rank, up to `MAX_BYTES`    keys, rows, optimizer state and scores of all tables of a module
    otherwise                       URL and hash of the snapshot of this step

Saving never communicates and never writes files. Loading finds all rows, or raises.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from sparring import StepContainer, open_snapshot
from sparring.adapter import TableGroup
from sparring.errors import DataError, InvalidArgumentError, SnapshotError, UnsupportedError
from sparring_torch.state.packed_rows import (
    PackedTable,
    RowsTensor,
    gather_table,
    has_same_rows,
    pack,
    restore_table,
    set_state,
    unpack,
)

__all__ = ["MAX_BYTES", "RowsInState", "count_row_bytes", "without_rows"]

MAX_BYTES = 1 << 30
"""Maximum bytes of rows of one module in a `state_dict`, and of one table in a copy."""

_KEY = "_extra_state"

_omits_rows: ContextVar[bool] = ContextVar("leaves_rows_out", default=False)
_entries_before: ContextVar[tuple[RowsTensor, ...]] = ContextVar("entries_before", default=())
"""Entries of other modules in the `state_dict` that is being created."""


@contextmanager
def without_rows() -> Iterator[None]:
    """Makes `state_dict` and `load_state_dict` skip rows in this block.

    Use it to save or load only ordinary weights, for example if rows are saved by ``container.save``.

    Examples:
        >>> import torch
        >>> from sparring_torch import Embedding, without_rows
        >>> model = torch.nn.Sequential(Embedding(4, name="items"), torch.nn.Linear(4, 1))
        >>> with without_rows():
        ...     sorted(model.state_dict())
        ['1.bias', '1.weight']
    """
    token = _omits_rows.set(True)
    try:
        yield
    finally:
        _omits_rows.reset(token)


def count_row_bytes(container: StepContainer, table: str) -> int:
    """Returns the size of all rows of a table on this rank."""
    return container.num_rows(table) * container.tables[table].row_bytes


class _LoadCall:
    """One call of `load_state_dict`, which processes modules one after another.

    It keeps weak references, because torch does not report when a call ends.
    """

    def __init__(self, errors: list[str] | None = None) -> None:
        self.errors = errors
        """The list that torch creates per call, the same for all modules of the call."""
        self.packed = weakref.WeakValueDictionary[int, Tensor]()
        """Number → entry with rows."""
        self.loaded = weakref.WeakKeyDictionary[StepContainer, set[str]]()
        """Container → names of its loaded tables."""
        self.joined: weakref.ref[StepContainer] | None = None
        """Container created by this call, for tables that had none."""

    def has_loaded(self, container: StepContainer, table: str) -> bool:
        """Returns whether this call has replaced the rows of a table."""
        return table in self.loaded.get(container, ())

    def note(
        self, container: StepContainer, tables: Iterable[str], step: int, url: str | None = None
    ) -> None:
        """Records loaded tables. When all tables of a container are loaded, sets its step."""
        known = self.loaded.setdefault(container, set())
        known.update(tables)
        if known >= set(container.tables):
            container.state.set_steps(step)
            container.saves.newest = None if url is None else (url, step)


class _Calls(threading.local):
    current: _LoadCall | None = None


_calls = _Calls()


class RowsInState(nn.Module):
    """Adds the rows of its tables to `state_dict`, and loads them in `load_state_dict`."""

    agent: TableGroup

    def get_extra_state(self) -> Tensor:
        """Returns the rows of all tables, with their optimizer state, in one uint8 tensor.

        With several ranks, or more than `MAX_BYTES`, it names the snapshot of this step instead.

        Raises:
            UnsupportedError: there is no such snapshot; call ``container.save`` first.
        """
        return torch.empty(0) if _omits_rows.get() else self._packed(_entries_before.get())

    def set_extra_state(self, state: object) -> None:
        """Replaces the rows of all tables by those from `get_extra_state`.

        Pending lookups are dropped. If the state names a snapshot, all ranks must call it.

        Args:
            state: result of `get_extra_state`, for tables with the same names.

        Raises:
            DataError: the state is invalid or damaged; no row has changed.
            InvalidArgumentError: the rows belong to another table or have another optimizer's state.
            SnapshotError: the named snapshot does not exist, or is a different one.
            UnsupportedError: the state contains the rows of one rank, but there are several.
        """
        if not _omits_rows.get():
            self._load_rows(state, _LoadCall())

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        before = tuple(each for each in destination.values() if isinstance(each, RowsTensor))
        token = _entries_before.set(before)
        try:
            super()._save_to_state_dict(destination, prefix, keep_vars)
        finally:
            _entries_before.reset(token)
        if _omits_rows.get():
            del destination[prefix + _KEY]

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key = prefix + _KEY
        if key not in state_dict and not _omits_rows.get():
            raise InvalidArgumentError(
                f"this state_dict has no rows of tables {', '.join(self.agent.table_names)}: it has no "
                f"entry {key!r}. It may be from a model without tables, or saved in without_rows(). To "
                "load only ordinary weights, and the rows separately by container.load(url), call "
                "load_state_dict in `with sparring_torch.without_rows():`",
                key=key,
            )
        if _calls.current is None or _calls.current.errors is not error_msgs:
            _calls.current = _LoadCall(error_msgs)
        saved = state_dict.pop(key, None)  # removed only from the copy that torch made
        try:
            super()._load_from_state_dict(
                state_dict,
                prefix,
                local_metadata,
                strict,
                missing_keys,
                unexpected_keys,
                error_msgs,
            )
        finally:
            if saved is not None:
                state_dict[key] = saved
        if key in missing_keys:
            missing_keys.remove(key)
        if not _omits_rows.get():
            self._load_rows(saved, _calls.current)

    # -- saving

    def _packed(self, before: Sequence[RowsTensor]) -> RowsTensor:
        container, names = self.agent.container, list(dict.fromkeys(self.agent.table_names))
        container.join_load()
        elsewhere = {
            name: each.number
            for each in before
            for name in names
            if (id(container), name) in each.holds
        }
        mine = [name for name in names if name not in elsewhere]
        header: dict[str, Any] = {
            "format": 1,
            "number": len(before),
            "step": container.counters.steps,
            "world_size": container.collective.world_size,
            "elsewhere": elsewhere,
            "snapshot": self._snapshot(container, mine),
        }
        are_here = header["snapshot"] is None
        tables = {name: gather_table(container, name, are_rows_here=are_here) for name in mine}
        packed = pack(header, tables)
        packed.number = len(before)
        packed.holds = {(id(container), name): tables[name].num_rows for name in mine}
        return packed

    def _snapshot(self, container: StepContainer, tables: list[str]) -> dict[str, Any] | None:
        """Returns the snapshot to name; None means that the rows are included."""
        world_size = container.collective.world_size
        num_bytes = sum(count_row_bytes(container, name) for name in tables)
        if world_size == 1 and num_bytes <= MAX_BYTES:
            return None
        if not num_bytes and not container.counters.steps:
            # `torch.distributed.checkpoint` reads the state of a new model before it loads.
            return None
        container.saves.join()
        newest, step = container.saves.newest, container.counters.steps
        if newest is None or newest[1] != step:
            reason = (
                f"are on {world_size} ranks"
                if world_size > 1
                else f"take {num_bytes:,} bytes, more than the maximum of {MAX_BYTES:,}"
            )
            raise UnsupportedError(
                f"state_dict: the rows of tables {', '.join(tables)} {reason}. It can name a "
                f"snapshot of step {step} instead, but "
                + ("there is none" if newest is None else f"the newest is of step {newest[1]}")
                + ": call container.save(url) on all ranks before state_dict(), with the container of "
                "the rows' optimizer (sparring_torch.lightning has a callback for this), or skip rows "
                "in `with sparring_torch.without_rows():`"
            )
        return {"url": newest[0], "hash": open_snapshot(newest[0]).manifest_hash}

    # -- loading

    def _load_rows(self, state: object, call: _LoadCall) -> None:
        agent = self.agent
        place = f"tables {', '.join(agent.table_names)}"
        header, tables = unpack(state, place)
        if not header.keys() >= {"number", "step", "world_size", "elsewhere", "snapshot"}:
            raise DataError(
                f"{place}: the saved rows are from a copy of a model; load rows of a state_dict"
            )
        elsewhere: dict[str, int] = dict(header["elsewhere"])
        saved_names = self._match_names({*tables, *elsewhere})
        own_names = {saved: name for name, saved in saved_names.items()}
        tables = {own_names.get(name, name): each for name, each in tables.items()}
        elsewhere = {own_names.get(name, name): each for name, each in elsewhere.items()}
        missing = set(agent.table_names) - set(tables) - set(elsewhere)
        if missing:
            raise InvalidArgumentError(
                f"{place}: found saved rows of tables {', '.join(tables)}; name the tables of the "
                "module as they were when saved",
                tables=sorted(missing),
            )
        container = self._container_for(call, elsewhere)
        if isinstance(state, Tensor):
            call.packed[header["number"]] = state
        entries = [(header, {name: tables[name] for name in agent.table_names if name in tables})]
        for name, number in elsewhere.items():
            if not call.has_loaded(container, name):
                saved_name = saved_names.get(name, name)
                found, given = _entry_elsewhere(call, saved_name, number, place)
                entries.append((found, {name: given[saved_name]}))
        for found, given in entries:
            is_shared = self._live_agent is not agent
            wanted = _without_known_rows(container, given, found) if is_shared else given
            if wanted:
                _load(container, wanted, found, call)

    def _match_names(self, saved: Set[str]) -> dict[str, str]:
        """Returns the saved names of tables that have another name now, with a warning."""
        names = {
            name: former
            for name, former in self.agent.former_names.items()
            if name not in saved and former in saved
        }
        if names:
            warnings.warn(
                "load_state_dict: the rows of "
                + ", ".join(
                    f"table {name!r} are those of {names[name]!r}" for name in sorted(names)
                )
                + ", the name that several modules had when they were saved; they have separate rows now",
                stacklevel=2,
            )
        return names

    @property
    def _live_agent(self) -> TableGroup:
        """The agent, or the original's agent for a copy in `shared_rows`."""
        live: TableGroup = getattr(self.agent, "original", self.agent)
        return live

    def _container_for(self, call: _LoadCall, elsewhere: Mapping[str, int]) -> StepContainer:
        """Joins modules without a container in one container, as an `Optimizer` does."""
        agent = self._live_agent
        known = None if call.joined is None else call.joined()
        own = set(agent.table_names) - set(elsewhere)
        if known is not None and not agent.has_container and own.isdisjoint(known.tables):
            agent.join(known)
        if known is None:
            call.joined = weakref.ref(agent.container)
        return agent.container


def _without_known_rows(
    container: StepContainer, tables: Mapping[str, PackedTable], header: Mapping[str, Any]
) -> dict[str, PackedTable]:
    """Returns the tables that a copy in `shared_rows` may load; it must not change shared rows.

    Raises:
        InvalidArgumentError: the model that owns the rows has other ones.
    """
    named = header["snapshot"]
    is_known = named is not None and container.saves.newest == (named["url"], header["step"])
    unknown = {}
    for name, saved in tables.items():
        if not container.num_rows(name):
            unknown[name] = saved
        elif not is_known and (named is not None or not has_same_rows(container, name, saved)):
            raise InvalidArgumentError(
                f"this copy shares the rows of table {name!r} with another model (shared_rows()), "
                "but the state_dict has different ones; load the state of that model first, or load "
                "this one in `with sparring_torch.without_rows():`",
                table=name,
            )
    return unknown


def _entry_elsewhere(
    call: _LoadCall, table: str, number: int, place: str
) -> tuple[dict[str, Any], dict[str, PackedTable]]:
    """Returns header and table from the entry of a previous module that contains the rows."""
    if number not in call.packed:
        raise InvalidArgumentError(
            f"{place}: the rows of table {table!r} are in the entry of a previous module of the saved "
            "model; load the state_dict of the whole model",
            table=table,
        )
    header, tables = unpack(call.packed[number], place)
    if table not in tables:
        raise DataError(
            f"{place}: this state_dict does not contain the rows of table {table!r}; load an older one"
        )
    return header, {table: tables[table]}


def _load(
    container: StepContainer,
    tables: Mapping[str, PackedTable],
    header: Mapping[str, Any],
    call: _LoadCall,
) -> None:
    """Loads tables of one entry."""
    named, step = header["snapshot"], int(header["step"])
    if named is not None:
        _load_snapshot(container, tables, named, call)
        call.note(container, tables, step, named["url"])
        return
    _check_ranks(container, tables, int(header["world_size"]))
    container.quiesce()
    container.discard()
    container.saves.newest = None
    for name, saved in tables.items():
        restore_table(container, name, saved)
    call.note(container, tables, step)


def _check_ranks(
    container: StepContainer, tables: Mapping[str, PackedTable], saved_by: int
) -> None:
    """Rejects rows in a state unless one rank saved them and one rank loads them."""
    names, world_size = ", ".join(tables), container.collective.world_size
    if saved_by > 1:
        raise UnsupportedError(
            f"this state_dict was saved by {saved_by} ranks before their first step, and has no rows "
            f"of tables {names}; nothing was loaded. Load one that names a snapshot, or only ordinary "
            "weights in `with sparring_torch.without_rows():`"
        )
    if world_size > 1:
        raise UnsupportedError(
            f"this state_dict has the rows of tables {names} of one rank, but there are {world_size} "
            "ranks: load it in one process, call container.save(url) there, and container.load(url) on "
            "all ranks; load ordinary weights in `with sparring_torch.without_rows():`"
        )


def _load_snapshot(
    container: StepContainer,
    tables: Mapping[str, PackedTable],
    named: Mapping[str, str],
    call: _LoadCall,
) -> None:
    url, expected = named["url"], named["hash"]
    what_to_do = (
        f"Nothing was loaded for tables {', '.join(tables)}: restore that snapshot at {url}, or load "
        "another one with container.load(url) and the ordinary weights in `with "
        "sparring_torch.without_rows():`"
    )
    container.quiesce()
    try:
        snapshot = open_snapshot(url)
    except SnapshotError as error:
        raise SnapshotError(
            f"load: the rows are in the snapshot {url}, which cannot be read: {error}. "
            + what_to_do,
            url=url,
        ) from error
    if snapshot.manifest_hash != expected:
        raise SnapshotError(
            f"load: the rows are in the snapshot {url} with hash {expected}, but the one found there "
            f"has hash {snapshot.manifest_hash}. {what_to_do}",
            url=url,
        )
    for name, saved in tables.items():
        set_state(container, name, saved)
    names = [name for name in tables if not call.has_loaded(container, name)]
    declared = {container.entry(name).saved_name(snapshot.tables) for name in container.tables}
    if set(snapshot.tables) == declared and not call.loaded.get(container):
        container.load(url)  # including counters
        call.note(container, snapshot.tables, container.counters.steps, url)
    elif names:
        container.load(url, tables=names)
