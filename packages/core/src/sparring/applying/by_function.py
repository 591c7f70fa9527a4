"""A step by a function over rows, as the own optimizers of frameworks want it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring.applying.committing import committing
from sparring.applying.gathering import Gathered, gather_rows
from sparring.applying.gradients import (
    check_owned,
    owned_gradients,
    summed_gradients,
    taken_gradients,
)
from sparring.applying.table_update import TableUpdate, Update
from sparring.applying.writing import write_rows
from sparring.device_functions import apply_update_on_device
from sparring.device_steps import lie_on_device

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["apply_update"]


def apply_update(container: StepContainer, update: Update) -> None:
    """As `StepContainer.apply`."""
    with container.resources.ending_step():
        resources = container.resources
        is_on_device = resources.is_on_device
        take: Callable[[str], Any] = resources.take_sources if is_on_device else resources.take
        taken, refusal = taken_gradients(container, take)
    if is_on_device and refusal is None:
        waiting = {name: each for name, each in taken.items() if each is not None}
        if lie_on_device(container, waiting):
            return apply_update_on_device(container, waiting, update)
        taken = {name: summed_gradients(container, name, each) for name, each in taken.items()}
    owned = owned_gradients(container, taken, refusal, by_rows=set(container.tables))
    steps = dict.fromkeys(container.tables, container.counters.steps + 1)
    gathered = Gathered([], {})
    with committing(container) as commit:
        check_owned(owned)
        with container.span("find"):
            gathered = gather_rows(container, owned, steps)
        commit.num_rows = {each.table.name: len(each.keys) for each in gathered.updates}
    with container.span("update"):
        update(_with_empty(container, gathered.updates, commit.touched, steps))
    with container.span("write"):
        write_rows(container, gathered)
    container.end_step()


def _with_empty(
    container: StepContainer,
    updates: Sequence[TableUpdate],
    touched: Sequence[str],
    steps: Mapping[str, int],
) -> list[TableUpdate]:
    """Also the tables of which other ranks alone change rows: optimizers count steps by table."""
    known = {update.table.name: update for update in updates}
    result = []
    for name in touched:
        if name in known:
            result.append(known[name])
            continue
        table = container.entry(name).config
        dtype = table.computing_dtype
        result.append(
            TableUpdate(
                table,
                np.empty(0, np.int64),
                np.empty((0, table.dim + table.state_width), dtype),
                np.empty((0, table.dim), dtype),
                steps[name],
            )
        )
    return result
