"""A step by update methods, built-in ones fused where rows lie with their storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sparring import _native
from sparring.applying.committing import agreed, committing
from sparring.applying.gathering import Gathered, gather_rows
from sparring.applying.gradients import (
    check_owned,
    own_gradients,
    owned_gradients,
    summed_gradients,
    taken_gradients,
)
from sparring.applying.room import check_rooms
from sparring.applying.table_update import TableUpdate
from sparring.applying.writing import write_fused, write_rows
from sparring.device_gradients import DeviceGradients
from sparring.device_methods import check_rooms_on_device, write_methods_on_device
from sparring.device_owned import (
    OwnedOnDevice,
    average,
    check_owned_on_device,
    owned_on_device,
)
from sparring.device_ways import kernels_of_step
from sparring.errors import InvalidArgumentError
from sparring.exchange import OwnedGradients
from sparring.memory_budget import check_memory
from sparring.resources import Accumulated
from sparring.updates.builtin import NativeMethod
from sparring.updates.clipping import clip_gradients
from sparring.updates.contract import MethodChoice, UpdateRows

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["apply_methods"]


def apply_methods(container: StepContainer, choices: Mapping[str, MethodChoice]) -> list[str]:
    """As `StepContainer.apply_methods`."""
    with container.resources.ending_step():
        sources, refusal = taken_gradients(container, container.resources.take_sources)
    waiting = {name: each for name, each in sources.items() if each is not None}
    try:
        _check_choices(waiting, choices)
    except InvalidArgumentError as error:
        refusal = refusal or error
    are_native = not any(isinstance(each, DeviceGradients) for each in waiting.values())
    step = None
    if container.collective.world_size == 1 and refusal is None and are_native:
        step = _straight(container, waiting, choices)
    if step is None:
        return _apply_owned(container, sources, choices, refusal)
    check_rooms(container, waiting, step)
    check_memory(container)
    touched = write_fused(container, step, list(waiting))
    container.end_step()
    return touched


def _straight(
    container: StepContainer, waiting: Mapping[str, Any], choices: Mapping[str, MethodChoice]
) -> Any | None:
    """A fused step over gradients as they came; None where they must be looked at first."""
    if not _is_fused(waiting, choices):
        return None
    step = _fused(container, waiting, choices)
    return None if step.doubtful() else step


def _apply_owned(
    container: StepContainer,
    sources: Mapping[str, Any],
    choices: Mapping[str, MethodChoice],
    refusal: BaseException | None,
) -> list[str]:
    """By way of gradients in arrays: they may come from other ranks, or be skipped."""
    found = kernels_of_step(container, sources)
    kernels = {name: each for name, each in found.items() if _is_fused([name], choices)}
    there = owned_on_device(container, sources, kernels, refusal)
    tables = [name for name in container.tables if name not in kernels]
    taken: dict[str, Accumulated] = {}
    if refusal is None:
        taken, refusal = own_gradients(
            container,
            lambda: {name: summed_gradients(container, name, sources[name]) for name in tables},
        )
    by_rows = set() if _is_fused(tables, choices) else set(tables)
    if container.collective.world_size > 1:
        # A storage that is reached by way of Python finds rows no faster fused; by rows, they are
        # found while gradients travel.
        by_rows |= {name for name in tables if not _is_native(container, name)}
    owned = owned_gradients(container, tables, taken, refusal, by_rows)
    if by_rows:
        return _apply_by_rows(container, owned, there, choices)
    step = None
    with committing(container) as commit:
        check_owned(owned)
        _check_there(container, there, choices)
        waiting = {
            name: _native.key_gradients(container.entry(name).view, each.keys, each.gradients)
            for name, each in owned.items()
        }
        _check_choices(waiting, choices)
        step = _fused(container, waiting, choices)
        check_rooms(container, waiting, step)
        commit.num_rows = _counts(owned, there)
    assert step is not None
    changed = write_methods_on_device(container, there, choices, after=list(waiting))
    write_fused(container, step, list(waiting), before=changed)
    container.end_step()
    return commit.touched


def _check_there(
    container: StepContainer,
    there: Mapping[str, OwnedOnDevice],
    choices: Mapping[str, MethodChoice],
) -> None:
    """Makes gradients that lie on devices what their rows are changed by; refuses what is wrong."""
    check_owned_on_device(there)
    _check_choices(there, choices)
    average(container, there)
    check_rooms_on_device(container, there)


def _counts(*owned: Mapping[str, OwnedGradients | OwnedOnDevice]) -> dict[str, int]:
    return {name: len(each.keys) for some in owned for name, each in some.items()}


def _apply_by_rows(
    container: StepContainer,
    owned: Mapping[str, OwnedGradients],
    there: Mapping[str, OwnedOnDevice],
    choices: Mapping[str, MethodChoice],
) -> list[str]:
    gathered = Gathered([], {})
    with committing(container) as commit:
        check_owned(owned)
        _check_there(container, there, choices)
        _check_choices(owned, choices)
        steps = {name: choices[name].step for name in owned}
        gathered = gather_rows(container, owned, steps)
        commit.num_rows = _counts(owned, there)
    with agreed(container):
        for update in gathered.updates:
            _update_rows(update, choices[update.table.name])
    changed = write_methods_on_device(container, there, choices, after=list(owned))
    write_rows(container, gathered, before=changed)
    container.end_step()
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
    container: StepContainer, waiting: Mapping[str, Any], choices: Mapping[str, MethodChoice]
) -> Any:
    parts = []
    for name, sources in waiting.items():
        entry, choice = container.entry(name), choices[name]
        assert isinstance(choice.method, NativeMethod)
        container.storage(name)
        spec = choice.method.spec(entry.config.dtype, entry.config.dim, choice.hyper, choice.step)
        parts.append((entry.view, spec, entry.initial_state, entry.admission_filter, [sources]))
    return _native.FusedStep(parts, container.counters.steps + 1)


def _check_choices(waiting: Mapping[str, Any], choices: Mapping[str, MethodChoice]) -> None:
    for name in waiting:
        if name not in choices:
            raise InvalidArgumentError(
                f"table {name!r} has gradients, but no update method was chosen for it; chosen "
                f"are those of {', '.join(choices) or 'none'}",
                table=name,
            )


def _is_fused(waiting: Iterable[str], choices: Mapping[str, MethodChoice]) -> bool:
    return all(
        isinstance(choices[name].method, NativeMethod) for name in waiting if name in choices
    )


def _is_native(container: StepContainer, name: str) -> bool:
    storage = container.entry(name).storage
    return storage is None or storage.capabilities.native
