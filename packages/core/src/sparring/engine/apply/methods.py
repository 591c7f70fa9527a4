"""A step by update methods, built-in ones fused where all rows are on this rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sparring import _native
from sparring.contracts.updates import MethodChoice, UpdateRows
from sparring.engine.apply.commit import agreed, check_rooms, committing
from sparring.engine.apply.device_methods import check_rooms_on_device, write_methods_on_device
from sparring.engine.apply.device_owned_gradients import (
    OwnedOnDevice,
    average,
    check_owned_on_device,
    owned_on_device,
)
from sparring.engine.apply.gather import Gathered, TableUpdate, gather_rows
from sparring.engine.apply.owned_gradients import (
    check_owned,
    kernels_of_step,
    own_gradients,
    owned_gradients,
    summed_gradients,
    taken_gradients,
)
from sparring.engine.apply.write import write_fused, write_rows
from sparring.engine.device_gradients import DeviceGradients
from sparring.engine.memory_budget import check_memory
from sparring.engine.resource_manager import Accumulated
from sparring.engine.state import EngineState
from sparring.errors import InvalidArgumentError
from sparring.exchange.messages import OwnedGradients
from sparring.updates.builtin import NativeMethod, clip_gradients

__all__ = ["apply_methods"]


def apply_methods(state: EngineState, choices: Mapping[str, MethodChoice]) -> list[str]:
    """As `StepContainer.apply_methods`."""
    with state.resources.ending_step():
        sources, refusal = taken_gradients(state, state.resources.take_sources)
    waiting = {name: each for name, each in sources.items() if each is not None}
    try:
        _check_choices(waiting, choices)
    except InvalidArgumentError as error:
        refusal = refusal or error
    are_native = not any(isinstance(each, DeviceGradients) for each in waiting.values())
    step = None
    if state.collective.world_size == 1 and refusal is None and are_native:
        step = _straight(state, waiting, choices)
    if step is None:
        return _apply_owned(state, sources, choices, refusal)
    check_rooms(state, waiting, step)
    if state.memory_bytes is not None:
        check_memory(state, state.memory_bytes)
    touched = write_fused(state, step, list(waiting))
    state.end_step()
    return touched


def _straight(
    state: EngineState, waiting: Mapping[str, Any], choices: Mapping[str, MethodChoice]
) -> Any | None:
    """A fused step over gradients as they came; None where they must be looked at first."""
    if not _is_fused(waiting, choices):
        return None
    step = _fused(state, waiting, choices)
    return None if step.may_be_nonfinite() else step


def _apply_owned(
    state: EngineState,
    sources: Mapping[str, Any],
    choices: Mapping[str, MethodChoice],
    refusal: BaseException | None,
) -> list[str]:
    """Through gradients in arrays: they may come from other ranks, or be skipped."""
    found = kernels_of_step(state, sources)
    kernels = {name: each for name, each in found.items() if _is_fused([name], choices)}
    there = owned_on_device(state, sources, kernels, refusal) if kernels else {}
    tables = [name for name in state.tables.entries if name not in kernels]
    taken: dict[str, Accumulated] = {}
    if refusal is None:
        taken, refusal = own_gradients(
            state,
            lambda: {name: summed_gradients(state, name, sources[name]) for name in tables},
        )
    by_rows = set() if _is_fused(tables, choices) else set(tables)
    if state.collective.world_size > 1:
        # A storage that is reached via Python finds rows no faster fused; by rows, they are
        # found while gradients travel.
        by_rows |= {name for name in tables if not _is_native(state, name)}
    owned = owned_gradients(state, tables, taken, refusal, by_rows)
    if by_rows:
        return _apply_by_rows(state, owned, there, choices)
    step = None
    with committing(state) as commit:
        check_owned(owned)
        _check_there(state, there, choices)
        waiting = {
            name: _native.key_gradients(state.tables.entries[name].view, each.keys, each.gradients)
            for name, each in owned.items()
        }
        _check_choices(waiting, choices)
        step = _fused(state, waiting, choices)
        check_rooms(state, waiting, step)
        commit.num_rows = _counts(owned, there)
    assert step is not None
    changed = write_methods_on_device(state, there, choices, after=list(waiting)) if there else []
    write_fused(state, step, list(waiting), before=changed)
    state.end_step()
    return commit.touched


def _check_there(
    state: EngineState,
    there: Mapping[str, OwnedOnDevice],
    choices: Mapping[str, MethodChoice],
) -> None:
    """Averages gradients that are on devices; refuses a step that their rows cannot take."""
    if not there:
        return
    check_owned_on_device(there)
    _check_choices(there, choices)
    average(state, there)
    check_rooms_on_device(state, there)


def _counts(*owned: Mapping[str, OwnedGradients | OwnedOnDevice]) -> dict[str, int]:
    return {name: len(each.keys) for some in owned for name, each in some.items()}


def _apply_by_rows(
    state: EngineState,
    owned: Mapping[str, OwnedGradients],
    there: Mapping[str, OwnedOnDevice],
    choices: Mapping[str, MethodChoice],
) -> list[str]:
    gathered = Gathered([], {})
    with committing(state) as commit:
        check_owned(owned)
        _check_there(state, there, choices)
        _check_choices(owned, choices)
        steps = {name: choices[name].step for name in owned}
        gathered = gather_rows(state, owned, steps)
        commit.num_rows = _counts(owned, there)
    with agreed(state):
        for update in gathered.updates:
            _update_rows(update, choices[update.table.name])
    changed = write_methods_on_device(state, there, choices, after=list(owned)) if there else []
    write_rows(state, gathered, before=changed)
    state.end_step()
    return commit.touched


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
            f"update of table {update.table.name!r}: method {choice.method.name!r} put another "
            "array in place of rows.embeddings or rows.state, which changes no row; write into "
            "it: rows.embeddings[:] = …. No row was changed",
            table=update.table.name,
        )


def _fused(
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


def _check_choices(waiting: Mapping[str, Any], choices: Mapping[str, MethodChoice]) -> None:
    for name in waiting:
        if name not in choices:
            raise InvalidArgumentError(
                f"table {name!r} has gradients, but its module was not given to the optimizer; chosen "
                f"are update methods of {', '.join(choices) or 'none'}",
                table=name,
            )


def _is_fused(waiting: Iterable[str], choices: Mapping[str, MethodChoice]) -> bool:
    return all(
        isinstance(choices[name].method, NativeMethod) for name in waiting if name in choices
    )


def _is_native(state: EngineState, name: str) -> bool:
    storage = state.tables.entries[name].storage
    return storage is None or storage.capabilities.native
