"""Application of a step with a function over rows, for the optimizers of frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparring.contracts.device.kernel_set import KernelSet
from sparring.engine.apply.commit import commit_vote, partial_step_errors
from sparring.engine.apply.gather import (
    GatheredRows,
    TableUpdate,
    Update,
    empty_update,
    gather_rows,
    num_kept,
)
from sparring.engine.apply.gradients import (
    check_and_average,
    choose_kernels,
    exchange_gradients,
    take_gradients,
)
from sparring.engine.apply.whole_updates import block_shape, whole_updates
from sparring.engine.apply.write import write_rows
from sparring.engine.state import EngineState
from sparring.engine.tables.column_blocks import table_names
from sparring.kernels.cpu import HOST

__all__ = ["apply_update"]


def apply_update(
    state: EngineState, update: Update, settings: Callable[[], Mapping[str, Any]] = dict
) -> None:
    """Implements `StepContainer.apply`."""
    taken, own_error = take_gradients(state, are_summed=True)
    kernels = choose_kernels(state, taken)
    owned = exchange_gradients(state, taken, own_error, kernels, by_rows=kernels.keys())
    steps = dict.fromkeys(kernels, state.counters.steps + 1)
    gathered, updates = dict[str, GatheredRows](), dict[str, TableUpdate]()
    with commit_vote(state, settings) as commit:
        check_and_average(state, owned)
        with state.span("find"):
            gathered = gather_rows(state, owned, steps)
        for name, each in gathered.items():
            if each.update is not None:
                updates[name] = each.update
                commit.num_rows[name] = len(each.update.keys)
        commit.num_kept = num_kept(gathered)
    touched = table_names(state.tables, commit.touched)
    with (
        state.span("update"),
        partial_step_errors(state),
        whole_updates(state.tables, updates) as given,
    ):
        update(_with_empty(state, given, touched, kernels))
    with state.span("write"):
        write_rows(state, gathered)
    state.end_step()


def _with_empty(
    state: EngineState,
    updates: Mapping[str, TableUpdate],
    touched: Sequence[str],
    kernels: Mapping[str, KernelSet],
) -> list[TableUpdate]:
    """Adds empty updates of tables whose rows only other ranks change, because optimizers count steps
    per table."""
    result = []
    for name in touched:
        known = updates.get(name)
        if known is None:
            table, step = block_shape(state.tables, name), state.counters.steps + 1
            known = empty_update(kernels.get(name, HOST), table, step)
        result.append(known)
    return result
