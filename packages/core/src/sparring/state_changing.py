"""Rows with another optimizer's state behind their embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparring.declared_table import DeclaredTable
from sparring.errors import UnsupportedError
from sparring.storage.contract import Columns
from sparring.storage.converting import conversion_command, copy_embeddings
from sparring.table import TableConfig

if TYPE_CHECKING:
    from sparring.table_container import TableContainer

__all__ = ["drop_state", "set_state"]


def set_state(
    container: TableContainer,
    entry: DeclaredTable,
    initial_state: npt.NDArray[Any],
    method: str,
) -> None:
    """As `StepContainer.set_state`."""
    config = entry.config.with_state(len(initial_state), method)
    entry.check_state(config)
    if entry.storage is not None and entry.storage.table.has_other_state(config):
        _replace_storage(container, entry, config, np.asarray(initial_state))
    entry.config = config
    entry.whole = Columns(0, config.width)
    entry.initial_state = np.array(initial_state, config.computing_dtype)


def drop_state(container: TableContainer, entry: DeclaredTable) -> None:
    """As `StepContainer.drop_state`."""
    config = entry.config.with_state(0)
    if entry.storage is not None:
        _replace_storage(container, entry, config, np.empty(0, config.computing_dtype))
    entry.config = config
    entry.whole = Columns(0, config.width)
    entry.initial_state = None


def _replace_storage(
    container: TableContainer,
    entry: DeclaredTable,
    config: TableConfig,
    state: npt.NDArray[Any],
) -> None:
    """Moves embeddings into a storage whose rows have another state."""
    old = entry.storage
    assert old is not None
    half_loaded = old.interrupted_load
    if not old.size and entry.choice is not None and half_loaded is None:
        old.close()
        entry.hold(None)
        return
    if entry.choice is None or old.capabilities.persistent:
        reason = "was given open; give one that was opened for the other state"
        if entry.choice is not None:
            command = conversion_command(
                entry.choice.backend, entry.choice.options, old.table, config
            )
            reason = f"outlives the process; convert it: {command}"
        raise UnsupportedError(
            f"table {config.name!r}: its storage cannot be replaced by one with other state, "
            f"because it {reason}",
            table=config.name,
        )
    new = container.open_storage(entry.choice, config)
    if half_loaded is not None:
        new.begin_load(half_loaded)  # a part stays a part
    copy_embeddings(old, new, state)
    entry.hold(new)
    old.close()
