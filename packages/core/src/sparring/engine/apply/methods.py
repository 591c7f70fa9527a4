"""Application of a step with update methods; built-in methods run fused if all rows are on this
rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from sparring import _native
from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.storage.updates import MethodChoice, UpdateRows
from sparring.contracts.tables.hyperparameters import HyperParameters
from sparring.engine.apply.commit import (
    check_capacity,
    check_method_capacities,
    commit_vote,
    partial_step_errors,
)
from sparring.engine.apply.gather import GatheredRows, TableUpdate, gather_rows, num_kept
from sparring.engine.apply.gradients import (
    check_and_average,
    choose_kernels,
    exchange_gradients,
    take_gradients,
)
from sparring.engine.apply.pushed import push_gradients, take_pushed
from sparring.engine.apply.write import write_fused, write_methods, write_rows
from sparring.engine.device_gradients import DeviceGradients
from sparring.engine.job.memory_budget import check_memory
from sparring.engine.state import EngineState
from sparring.engine.tables.column_blocks import expand_choices, table_names
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring.kernels.cpu import HOST
from sparring.updates.builtin import NativeMethod, clip_gradients

__all__ = ["apply_methods"]


def apply_methods(
    state: EngineState,
    choices: Mapping[str, MethodChoice],
    settings: Callable[[], Mapping[str, Any]] | None = None,
) -> list[str]:
    """Implements `StepContainer.apply_methods`."""
    settings = settings or partial(_describe, choices)
    taken, own_error = take_gradients(state, are_summed=False)
    try:
        choices = expand_choices(state.tables, choices)
        _check_choices(taken, choices)
    except (InvalidArgumentError, UnsupportedError) as error:
        own_error = own_error or error
    step, pushed = None, list[str]()
    if state.collective.world_size == 1 and own_error is None:
        elsewhere = take_pushed(state, taken)
        if elsewhere:
            pushed = push_gradients(state, elsewhere, choices)
            if not taken:
                state.end_step()
                return pushed
        step = _try_fused_step(state, taken, choices)
    if step is None and pushed:
        return [*pushed, *_apply_owned(state, taken, choices, own_error, settings)]
    if step is None:
        return table_names(state.tables, _apply_owned(state, taken, choices, own_error, settings))
    _check_capacities(state, taken, step)
    if state.memory_bytes is not None:
        check_memory(state, state.memory_bytes)
    touched = write_fused(state, step, list(taken), before=pushed)
    state.end_step()
    return [*pushed, *touched]


def _try_fused_step(
    state: EngineState, taken: Mapping[str, Any], choices: Mapping[str, MethodChoice]
) -> Any | None:
    """Creates a fused step over unsummed gradients, or returns None if they must be checked first."""
    for name, each in taken.items():
        if not isinstance(choices[name].method, NativeMethod) or isinstance(each, DeviceGradients):
            return None
    step = _make_fused_step(state, taken, choices)
    return None if step.may_be_nonfinite() else step


def _apply_owned(
    state: EngineState,
    taken: Mapping[str, Any],
    choices: Mapping[str, MethodChoice],
    own_error: BaseException | None,
    settings: Callable[[], Mapping[str, Any]],
    *,
    defers_finite_check: bool = True,
) -> list[str]:
    """Applies gradients in arrays, which may come from other ranks or be skipped.

    Rows on a device are updated in place, all tables of the device together. Rows on the host are
    updated by one fused step, or, if a method is written in Python, in arrays.

    Args:
        state: state of the engine.
        taken: accumulated gradients by table.
        choices: update method by table.
        own_error: error of this rank, if it cannot apply the step.
        settings: returns the settings of the update, which must be equal on all ranks.
        defers_finite_check: whether the update itself may check that gradients are finite.

    Returns:
        The entries that had a gradient on any rank.
    """
    entries = state.tables.entries
    kernels = choose_kernels(
        state, taken, on_host={name for name in entries if not _is_fused([name], choices)}
    )
    tables = [name for name, each in kernels.items() if each is HOST]
    by_rows = set() if _is_fused(tables, choices) else set(tables)
    if state.collective.world_size > 1:
        # A fused step is not faster for a storage that is accessed via Python. With arrays, the rows
        # are found while gradients are exchanged.
        by_rows |= {name for name in tables if not _is_native(state, name)}
        # Native code creates and rounds new rows as if they were a table's first columns.
        if any(entries[name].block is not None for name in tables):
            by_rows = set(tables)
    defers_finite_check = defers_finite_check and _may_defer_finite_check(state, kernels)
    owned = exchange_gradients(
        state, taken, own_error, kernels, by_rows, defers_finite_check=defers_finite_check
    )
    there = {name: each for name, each in owned.items() if each.kernels is not HOST}
    here = {name: each for name, each in owned.items() if each.kernels is HOST}
    step, gathered = None, dict[str, GatheredRows]()
    with commit_vote(state, settings) as commit:
        check_and_average(state, owned)
        _check_choices(owned, choices)
        check_method_capacities(state, there)
        if by_rows:
            gathered = gather_rows(state, here, {name: choices[name].step for name in here})
        else:
            waiting = {
                name: _native.key_gradients(
                    entries[name].view, each.keys, each.gradients, are_distinct=True
                )
                for name, each in here.items()
            }
            step = _make_fused_step(state, waiting, choices)
            _check_capacities(state, waiting, step)
        commit.num_rows = {name: len(each.keys) for name, each in owned.items()}
        commit.num_kept = num_kept(gathered)
    if by_rows:
        with partial_step_errors(state):
            for name, each in gathered.items():
                if each.update is not None:
                    _update_rows(each.update, choices[name])
    changed = write_methods(state, there, choices, after=list(here))
    if changed is None:  # gradients are not finite: check them before the update this time
        return _apply_owned(state, taken, choices, own_error, settings, defers_finite_check=False)
    if step is None:
        write_rows(state, gathered, before=changed)
    else:
        write_fused(state, step, list(here), before=changed)
    state.end_step()
    return commit.touched


def _may_defer_finite_check(state: EngineState, kernels: Mapping[str, KernelSet]) -> bool:
    """Whether the update itself may check that gradients are finite: no earlier work depends on the
    result, and one call updates all tables."""
    return (
        state.collective.world_size == 1
        and state.memory_bytes is None
        and len({each.device for each in kernels.values() if each is not HOST}) == 1
        and not any(
            entry.may_refuse or entry.write_log.is_active for entry in state.tables.entries.values()
        )
    )


def _describe(choices: Mapping[str, MethodChoice]) -> dict[str, dict[str, Any]]:
    """Returns the settings of each table's update as JSON values."""
    return {
        name: {
            "method": each.method.name,
            "step": each.step,
            **_to_json(each.hyper),
        }
        for name, each in choices.items()
    }


def _to_json(hyper: HyperParameters) -> dict[str, Any]:
    try:
        return hyper.model_dump(mode="json")
    except ValueError:  # a value of a plugin that JSON does not support
        return {name: _to_text(value) for name, value in hyper.model_dump().items()}


def _to_text(value: object) -> str:
    """Returns a text that is the same on all ranks for equal values."""
    text = repr(value)
    # Addresses differ between ranks.
    return type(value).__qualname__ if " at 0x" in text else text


def _update_rows(update: TableUpdate, choice: MethodChoice) -> None:
    dim = update.table.dim
    if not isinstance(choice.method, NativeMethod):
        clip_gradients(update.gradients, choice.hyper)
    rows = UpdateRows(
        update.keys,
        update.rows,
        update.rows[:, :dim],
        update.rows[:, dim:],
        update.gradients,
        choice.step,
    )
    views = rows.embeddings, rows.state
    choice.method.update(rows, choice.hyper)
    if rows.embeddings is not views[0] or rows.state is not views[1]:
        raise InvalidArgumentError(
            f"update of table {update.table.name!r}: method {choice.method.name!r} replaced the "
            "array rows.embeddings or rows.state, which changes no row; write into "
            "it: rows.embeddings[:] = …. No row was changed",
            table=update.table.name,
        )


def _make_fused_step(
    state: EngineState, waiting: Mapping[str, Any], choices: Mapping[str, MethodChoice]
) -> Any:
    parts = []
    for name, sources in waiting.items():
        entry, choice = state.tables.entries[name], choices[name]
        assert isinstance(choice.method, NativeMethod)
        state.tables.storage(name)
        spec = choice.method.spec(entry.config.dtype, entry.config.dim, choice.hyper, choice.step)
        parts.append((entry.view, spec, entry.initial_state, entry.admission_filter, [sources]))
    return _native.FusedStep(parts, state.counters.steps + 1)


def _check_capacities(state: EngineState, waiting: Iterable[str], step: Any) -> None:
    """Calls `check_capacity` for every table that a fused step will change."""
    for position, name in enumerate(waiting):
        if state.tables.entries[name].may_refuse:
            check_capacity(state.tables.storage(name), step.count_new(position))


def _check_choices(waiting: Mapping[str, Any], choices: Mapping[str, MethodChoice]) -> None:
    for name in waiting:
        if name not in choices:
            raise InvalidArgumentError(
                f"apply_methods: table {name!r} has gradients, but no update method; found methods for "
                f"{', '.join(choices) or 'no table'}. Pass its module to the optimizer",
                table=name,
            )


def _is_fused(waiting: Iterable[str], choices: Mapping[str, MethodChoice]) -> bool:
    return all(
        isinstance(choices[name].method, NativeMethod) for name in waiting if name in choices
    )


def _is_native(state: EngineState, name: str) -> bool:
    storage = state.tables.entries[name].storage
    return storage is None or storage.capabilities.native
