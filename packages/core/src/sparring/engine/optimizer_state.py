"""Sets, checks and replaces the optimizer state that is stored after each embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.column_block import ColumnBlock
from sparring.contracts.storage.results import Columns
from sparring.contracts.storage.storage import Storage, interrupted_load
from sparring.contracts.storage.updates import UpdateMethod, why_coupled
from sparring.contracts.tables.hyperparameters import HyperParameters
from sparring.contracts.tables.table import TableConfig
from sparring.engine.state import EngineState, Purpose, quiesce
from sparring.engine.tables.column_blocks import check_method
from sparring.engine.tables.entry import TableEntry, TableScalars
from sparring.errors import InvalidArgumentError, SparringError, UnsupportedError
from sparring.storage.convert import copy_embeddings

__all__ = [
    "TableState",
    "check_state",
    "drop_state",
    "set_method_states",
    "set_states",
    "method_state",
    "set_state",
]


@dataclass(frozen=True, slots=True)
class TableState:
    """State that an optimizer stores after the embeddings of one table."""

    method: str
    """Name of the update method or framework optimizer that owns the state."""
    initial: npt.NDArray[Any]
    """``(state_width,)`` of the table's computing dtype: the state of a new row."""
    why_coupled: str = ""
    """Reason why the owner cannot update blocks of columns separately; empty if it can."""


def method_state(method: UpdateMethod, hyper: HyperParameters, table: TableConfig) -> TableState:
    """Returns the state that an update method stores for a table.

    Args:
        method: the update method.
        hyper: hyper-parameters of the table.
        table: declaration of the table.
    """
    initial = method.initial_state(table.dim, hyper, table.computing_dtype)
    return TableState(method.name, initial, why_coupled(method, hyper))


def set_states(
    state: EngineState,
    wanted: Mapping[str, TableState],
    given: Mapping[str, Storage],
    optimizer: str,
    *,
    resets: bool = False,
) -> None:
    """Sets the optimizer state of all tables of an optimizer, or of none if one of them is invalid.

    Args:
        state: state of the engine.
        wanted: optimizer state by table.
        given: storages that were passed in open, by table.
        optimizer: name of the optimizer, for messages.
        resets: whether to reset the state of rows that exist, which may belong to another optimizer.

    Raises:
        InvalidArgumentError: a table has rows of another width or with the state of another optimizer.
        UnsupportedError: a table is sharded by columns, and the optimizer needs whole rows; or the
            state of a storage cannot be reset.
    """
    state.check_open()
    # Everything is checked before the state of the first table is set.
    for name, each in wanted.items():
        entry = state.tables.entry(name)
        _check_width(given.get(name), len(each.initial), optimizer)
        check_method(entry, optimizer, each.why_coupled)
        if resets:
            _check_resettable(state, entry)
        else:
            check_state(entry, len(each.initial), each.method)
    quiesce(state, Purpose.RESHAPE)
    # Tables without rows first: if one cannot be opened, the rows of the others keep their state.
    for name in sorted(wanted, key=lambda name: resets and _has_rows(state.tables.entry(name))):
        entry, each = state.tables.entry(name), wanted[name]
        if resets:
            drop_state(state, entry)
        before = entry.config, entry.whole, entry.initial_state
        set_state(state, entry, each.initial, each.method)
        # Opened here, so that a missing backend is reported before the first step.
        try:
            for part in entry.parts:
                state.tables.open(part)
        except SparringError:
            if entry.storage is None and not entry.has_column_blocks:
                entry.config, entry.whole, entry.initial_state = before
            raise


def set_method_states(
    state: EngineState,
    method: UpdateMethod,
    hypers: Mapping[str, HyperParameters],
    given: Mapping[str, Storage],
    *,
    resets: bool = False,
) -> None:
    """Calls `set_states` for an update method.

    Args:
        state: state of the engine.
        method: the update method.
        hypers: hyper-parameters by table.
        given: storages that were passed in open, by table.
        resets: as for `set_states`.
    """
    wanted = {
        name: method_state(method, hyper, state.tables.entry(name).config)
        for name, hyper in hypers.items()
    }
    set_states(state, wanted, given, f"update method {method.name!r}", resets=resets)


def _has_rows(entry: TableEntry) -> bool:
    return any(part.storage is not None and part.storage.size > 0 for part in entry.parts)


def _check_resettable(state: EngineState, entry: TableEntry) -> None:
    for part in entry.parts:
        state.tables.probe_existing_rows(part)
        storage = part.storage
        if storage is None or not storage.size or not storage.table.state_width:
            continue
        if part.choice is None or storage.capabilities.persistent:
            raise UnsupportedError(
                f"reset_state: table {entry.table_name!r} has {storage.size} rows in a storage that "
                f"{'was passed in open' if part.choice is None else 'outlives the process'}, whose "
                "state cannot be reset; create the table with a new storage, and copy the embeddings "
                "with StepContainer.assign",
                table=entry.table_name,
            )


def check_state(entry: TableEntry, state_width: int, method: str) -> None:
    """Implements `StepContainer.check_state`."""
    config = entry.config.with_state(state_width, method)
    if not ColumnBlock.divides_state(config):
        reason = f"it stores {state_width} elements of state per row of {config.dim}"
        check_method(entry, method or "the optimizer", reason)
    if not entry.has_column_blocks:
        entry.check_state(config)
        return
    width = state_width // len(entry.parts)
    for part in entry.parts:
        part.check_state(part.config.with_state(width, method))


def set_state(
    state: EngineState, entry: TableEntry, initial_state: npt.NDArray[Any], method: str
) -> None:
    """Implements `StepContainer.set_state`. No background work may be running."""
    config = entry.config.with_state(len(initial_state), method)
    check_state(entry, len(initial_state), method)
    if entry.config.state_method != method:
        entry.scalars = None
    if entry.has_column_blocks:
        for part in entry.parts:
            assert part.block is not None
            own = part.block.columns.cut_state(config, np.asarray(initial_state)[None])[0]
            set_state(state, part, own, method)
    elif entry.storage is not None and entry.storage.table.has_other_state(config):
        _replace_storage(state, entry, config, np.asarray(initial_state))
        entry.scalars = TableScalars(method, dict)  # no steps yet
    entry.config = config
    entry.whole = Columns(0, config.width)
    entry.initial_state = np.array(initial_state, config.computing_dtype)


def drop_state(state: EngineState, entry: TableEntry) -> None:
    """Implements `StepContainer.drop_state`. No background work may be running."""
    config = entry.config.with_state(0)
    entry.scalars = None
    if entry.has_column_blocks:
        for part in entry.parts:
            drop_state(state, part)
    elif entry.storage is not None:
        _replace_storage(state, entry, config, np.empty(0, config.computing_dtype))
    entry.config = config
    entry.whole = Columns(0, config.width)
    entry.initial_state = None


def _replace_storage(
    state: EngineState, entry: TableEntry, config: TableConfig, initial_state: npt.NDArray[Any]
) -> None:
    """Moves the embeddings into a new storage whose rows have another state."""
    old = entry.storage
    assert old is not None
    half_loaded = interrupted_load(old)
    if not old.size and entry.choice is not None and half_loaded is None:
        old.close()
        entry.attach_storage(None)
        return
    if entry.choice is None:
        raise UnsupportedError(
            f"changing the optimizer state of table {config.name!r}: its storage was already open and "
            "cannot be replaced; pass a storage that was opened for the new state",
            table=config.name,
        )
    if old.capabilities.persistent:
        # The backend raises the error with the reason: such rows must be converted, or are read-only.
        old.close()
        entry.attach_storage(None)
        try:
            entry.attach_storage(state.tables.open_storage(entry.choice, config))
        except SparringError:
            entry.attach_storage(state.tables.open_storage(entry.choice, old.table))
            raise
        return
    new = state.tables.open_storage(entry.choice, config)
    copy_embeddings(old, new, initial_state)
    entry.attach_storage(new)
    old.close()


def _check_width(storage: Storage | None, state_width: int, optimizer: str) -> None:
    if storage is not None and storage.table.state_width != state_width:
        raise InvalidArgumentError(
            f"the storage passed for table {storage.table.name!r} has rows with "
            f"{storage.table.state_width} elements of state, but {optimizer} needs "
            f"{state_width}; open it with state_width={state_width} in its TableConfig",
            table=storage.table.name,
            state_width=state_width,
        )
