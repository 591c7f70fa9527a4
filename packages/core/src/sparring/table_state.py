"""The optimizer's state behind embeddings: whose it is, and what a new row begins with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from sparring.errors import InvalidArgumentError

if TYPE_CHECKING:
    from sparring.step import StepContainer
    from sparring.storage.contract import Storage
    from sparring.table import TableConfig
    from sparring.updates.contract import UpdateMethod
    from sparring.updates.hyperparameters import HyperParameters

__all__ = ["TableState", "give_states", "method_state"]


@dataclass(frozen=True, slots=True)
class TableState:
    """The state that an optimizer keeps behind the embeddings of one table."""

    method: str
    """Whose it is: an update method, or an optimizer of a framework."""
    initial: npt.NDArray[Any]
    """``(state_width,)`` of the table's computing dtype: the state of a new row."""


def method_state(method: UpdateMethod, hyper: HyperParameters, table: TableConfig) -> TableState:
    """What an update method keeps for a table."""
    return TableState(method.name, method.initial_state(table.dim, hyper, table.computing_dtype))


def give_states(
    container: StepContainer,
    states: Mapping[str, TableState],
    given: Mapping[str, Storage],
    optimizer: str,
) -> None:
    """Puts an optimizer's state behind the embeddings of all its tables, or of none.

    Args:
        container: where the tables live.
        states: by table.
        given: the storages that were given open, by table.
        optimizer: how its user calls it, for messages.

    Raises:
        InvalidArgumentError: a table has rows of another width, or another optimizer's rows.
    """
    # All that can be refused is refused before the state of the first table is set.
    for name, state in states.items():
        _check_width(given.get(name), len(state.initial), optimizer)
        container.check_state(name, len(state.initial), state.method)
    for name, state in states.items():
        container.set_state(name, state.initial, state.method)
        # Opened now: a backend that is missing should not be found out by the first step.
        container.opened(container.entry(name))


def _check_width(storage: Storage | None, state_width: int, optimizer: str) -> None:
    if storage is not None and storage.table.state_width != state_width:
        raise InvalidArgumentError(
            f"the storage given for table {storage.table.name!r} has rows with "
            f"{storage.table.state_width} elements of state, but {optimizer} keeps "
            f"{state_width}; open it with state_width={state_width} in its TableConfig",
            table=storage.table.name,
            state_width=state_width,
        )
