"""A step by a function over rows, as the own optimizers of frameworks want it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sparring.applying.committing import committing
from sparring.applying.gathering import Gathered, gather_rows
from sparring.applying.gradients import check_owned, owned_gradients, taken_gradients
from sparring.applying.table_update import TableUpdate, Update
from sparring.applying.writing import write_rows

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["apply_update"]


def apply_update(container: StepContainer, update: Update) -> None:
    """As `StepContainer.apply`."""
    with container.resources.ending_step():
        taken, refusal = taken_gradients(container, container.resources.take)
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
