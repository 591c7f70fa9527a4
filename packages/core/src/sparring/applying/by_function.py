"""A step by a function over rows, as the own optimizers of frameworks want it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring.applying.committing import agreed, committing
from sparring.applying.gathering import Gathered, gather_rows
from sparring.applying.gradients import (
    check_owned,
    own_gradients,
    owned_gradients,
    summed_gradients,
    taken_gradients,
)
from sparring.applying.table_update import TableUpdate, Update
from sparring.applying.writing import write_rows
from sparring.device_functions import (
    GatheredOnDevice,
    gather_on_device,
    no_update,
    write_on_device,
)
from sparring.device_owned import average, check_owned_on_device, owned_on_device
from sparring.device_ways import kernels_of_step
from sparring.kernel_set import KernelSet
from sparring.resources import Accumulated

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["apply_update"]


def apply_update(container: StepContainer, update: Update) -> None:
    """As `StepContainer.apply`."""
    resources = container.resources

    def take(name: str) -> Any:
        is_there = resources.are_on_device(name)
        return resources.take_sources(name) if is_there else resources.take(name)

    with resources.ending_step():
        taken, refusal = taken_gradients(container, take)
    kernels = kernels_of_step(container, taken)
    owned_there = owned_on_device(container, taken, kernels, refusal)
    tables = [name for name in container.tables if name not in kernels]
    here: dict[str, Accumulated] = {}
    if refusal is None:
        here, refusal = own_gradients(
            container,
            lambda: {name: _in_arrays(container, name, taken[name]) for name in tables},
        )
    owned = owned_gradients(container, tables, here, refusal, by_rows=set(tables))
    steps = dict.fromkeys(tables, container.counters.steps + 1)
    gathered, there = Gathered([], {}), dict[str, GatheredOnDevice]()
    with committing(container) as commit:
        check_owned(owned)
        check_owned_on_device(owned_there)
        average(container, owned_there)
        with container.span("find"):
            there = gather_on_device(container, owned_there)
            gathered = gather_rows(container, owned, steps)
        updates = [*gathered.updates, *(each.update for each in there.values() if each.update)]
        commit.num_rows = {each.table.name: len(each.keys) for each in updates}
    with container.span("update"), agreed(container):
        update(_with_empty(container, updates, commit.touched, kernels))
    with container.span("write"):
        write_on_device(container, there, after=[each.table.name for each in gathered.updates])
        changed = [name for name, each in there.items() if each.update is not None]
        write_rows(container, gathered, before=changed)
    container.end_step()


def _in_arrays(container: StepContainer, name: str, taken: Any) -> Accumulated:
    if isinstance(taken, Accumulated):
        return taken
    return summed_gradients(container, name, taken)


def _with_empty(
    container: StepContainer,
    updates: Sequence[TableUpdate],
    touched: Sequence[str],
    kernels: Mapping[str, KernelSet],
) -> list[TableUpdate]:
    """Also the tables of which other ranks alone change rows: optimizers count steps by table."""
    known = {update.table.name: update for update in updates}
    result = []
    for name in touched:
        if name in known:
            result.append(known[name])
            continue
        if name in kernels:
            result.append(no_update(container, name, kernels[name]))
            continue
        table = container.entry(name).config
        dtype = table.computing_dtype
        result.append(
            TableUpdate(
                table,
                np.empty(0, np.int64),
                np.empty((0, table.dim + table.state_width), dtype),
                np.empty((0, table.dim), dtype),
                container.counters.steps + 1,
            )
        )
    return result
