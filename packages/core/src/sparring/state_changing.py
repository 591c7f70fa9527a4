"""Rows with another optimizer's state behind their embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparring.declared_table import DeclaredTable
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring.storage.contract import Columns
from sparring.storage.converting import copy_embeddings
from sparring.table import TableConfig

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["drop_state", "set_state"]


def set_state(
    container: StepContainer,
    entry: DeclaredTable,
    initial_state: npt.NDArray[Any],
    method: str,
) -> None:
    """As `StepContainer.set_state`."""
    table = entry.config.name
    config = entry.config.with_state(len(initial_state), method)
    storage = entry.storage
    if storage is not None and storage.table.width != config.width and entry.choice is None:
        raise InvalidArgumentError(
            f"table {table!r}: the storage given has {storage.table.state_width} elements of "
            f"state, {method} needs {config.state_width}; open it for "
            f"TableConfig.with_state({config.state_width})",
            table=table,
        )
    if storage is not None and storage.table.has_other_state(config):
        if storage.size and storage.table.state_width:
            raise InvalidArgumentError(
                f"table {table!r} holds {storage.size} rows with {storage.table.state_width} "
                f"elements of state of {storage.table.state_method or 'an unknown optimizer'}, "
                f"{method or 'the optimizer'} needs {config.state_width} of its own; use the "
                f"same kind of optimizer, or call StepContainer.drop_state({table!r}) first: "
                "embeddings stay, and their state starts anew",
                table=table,
            )
        _replace_storage(container, entry, config, np.asarray(initial_state))
    entry.config = config
    entry.whole = Columns(0, config.width)
    entry.initial_state = np.array(initial_state, config.computing_dtype)


def drop_state(container: StepContainer, entry: DeclaredTable) -> None:
    """As `StepContainer.drop_state`."""
    config = entry.config.with_state(0)
    if entry.storage is not None:
        _replace_storage(container, entry, config, np.empty(0, config.computing_dtype))
    entry.config = config
    entry.whole = Columns(0, config.width)
    entry.initial_state = None


def _replace_storage(
    container: StepContainer,
    entry: DeclaredTable,
    config: TableConfig,
    state: npt.NDArray[Any],
) -> None:
    """Moves embeddings into a storage whose rows have another state."""
    old = entry.storage
    assert old is not None
    if not old.size and entry.choice is not None:
        old.close()
        entry.hold(None)
        return
    if entry.choice is None or old.capabilities.persistent:
        raise UnsupportedError(
            f"table {config.name!r}: its storage cannot be replaced by one with other state, "
            "because it was given open, or outlives the process; convert a persistent one with "
            "the command: sparring convert --help",
            table=config.name,
        )
    new = container.open_storage(entry.choice, config)
    copy_embeddings(old, new, state)
    entry.hold(new)
    old.close()
