"""A step by a function over rows, as the own optimizers of frameworks want it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparring.contracts.kernels import KernelSet
from sparring.engine.apply.commit import agreed, committing
from sparring.engine.apply.device_function import (
    GatheredOnDevice,
    gather_on_device,
    no_update,
    write_on_device,
)
from sparring.engine.apply.device_owned_gradients import (
    average,
    check_owned_on_device,
    owned_on_device,
)
from sparring.engine.apply.gather import Gathered, TableUpdate, Update, gather_rows
from sparring.engine.apply.owned_gradients import (
    check_owned,
    kernels_of_step,
    own_gradients,
    owned_gradients,
    summed_gradients,
    taken_gradients,
)
from sparring.engine.apply.write import write_rows
from sparring.engine.resource_manager import Accumulated
from sparring.engine.state import EngineState

__all__ = ["apply_update"]


def apply_update(state: EngineState, update: Update) -> None:
    """As `StepContainer.apply`."""
    resources = state.resources

    def take(name: str) -> Any:
        is_there = resources.are_on_device(name)
        return resources.take_sources(name) if is_there else resources.take(name)

    with resources.ending_step():
        taken, refusal = taken_gradients(state, take)
    kernels = kernels_of_step(state, taken)
    owned_there = owned_on_device(state, taken, kernels, refusal) if kernels else {}
    tables = [name for name in state.tables.entries if name not in kernels]
    here: dict[str, Accumulated] = {}
    if refusal is None:
        here, refusal = own_gradients(
            state,
            lambda: {name: _in_arrays(state, name, taken[name]) for name in tables},
        )
    owned = owned_gradients(state, tables, here, refusal, by_rows=set(tables))
    steps = dict.fromkeys(tables, state.counters.steps + 1)
    gathered, there = Gathered([], {}), dict[str, GatheredOnDevice]()
    with committing(state) as commit:
        check_owned(owned)
        if owned_there:
            check_owned_on_device(owned_there)
            average(state, owned_there)
        with state.span("find"):
            if owned_there:
                there = gather_on_device(state, owned_there)
            gathered = gather_rows(state, owned, steps)
        updates = [*gathered.updates, *(each.update for each in there.values() if each.update)]
        commit.num_rows = {each.table.name: len(each.keys) for each in updates}
    with state.span("update"), agreed(state):
        update(_with_empty(state, updates, commit.touched, kernels))
    with state.span("write"):
        if there:
            write_on_device(state, there, after=[each.table.name for each in gathered.updates])
        changed = [name for name, each in there.items() if each.update is not None]
        write_rows(state, gathered, before=changed)
    state.end_step()


def _in_arrays(state: EngineState, name: str, taken: Any) -> Accumulated:
    if isinstance(taken, Accumulated):
        return taken
    return summed_gradients(state, name, taken)


def _with_empty(
    state: EngineState,
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
            result.append(no_update(state, name, kernels[name]))
            continue
        table = state.tables.entries[name].config
        dtype = table.computing_dtype
        result.append(
            TableUpdate(
                table,
                np.empty(0, np.int64),
                np.empty((0, table.dim + table.state_width), dtype),
                np.empty((0, table.dim), dtype),
                state.counters.steps + 1,
            )
        )
    return result
