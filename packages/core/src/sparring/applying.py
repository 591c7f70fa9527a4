"""Applies what a step accumulated: gradients to their owners, checked, into rows.

Everything that can be refused is refused before the first row changes, by all ranks together: what
one of them finds out goes round before gradients travel, and again before rows are written. What
cannot be foreseen, a disk that fails or memory that ends while a storage writes, may leave a step that
some tables took and others did not: `PartialStepError` names them. There are two ways.

- By a function over rows: `apply_update`. Rows and gradients lie in arrays, as frameworks' own
  optimizers want them. All tables' new rows are computed before the first is written.
- By update methods: `apply_methods`. Built-in ones run fused where all rows are on this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from sparring import _native
from sparring.admission import Decision, decide_unseen
from sparring.collective import Reduction
from sparring.device_gradients import DeviceGradients
from sparring.device_steps import apply_on_device, goes_on_device
from sparring.errors import CapacityError, InvalidArgumentError, PartialStepError
from sparring.exchange import OwnedGradients, PushRequest
from sparring.kernels import Rounding
from sparring.memory_budget import check_memory
from sparring.non_finite import finite_only
from sparring.resources import Accumulated
from sparring.row_parts import computing_rows, stored_rows
from sparring.storage.contract import Keys, Rows, Storage
from sparring.storage.updating import fused_evicted
from sparring.table import TableConfig
from sparring.updates.builtin import NativeMethod
from sparring.updates.clipping import clip_gradients
from sparring.updates.contract import MethodChoice, UpdateRows

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["TableUpdate", "Update", "apply_methods", "apply_update"]


@dataclass(slots=True)
class TableUpdate:
    """What an update gets for one table: it changes `rows` in place."""

    table: TableConfig
    keys: Keys
    """``(u,)``"""
    rows: Rows
    """``(u, dim + state_width)`` of the computing dtype: embedding, then state."""
    gradients: Rows
    """``(u, dim)`` of the computing dtype."""
    step: int
    """The number of this step, from 1: rounding to 16 bits is seeded by it."""


class Update(Protocol):
    """Changes the rows of all updates in place, in one call for a step."""

    def __call__(self, updates: Sequence[TableUpdate], /) -> None: ...


def apply_update(container: StepContainer, update: Update) -> None:
    """As `StepContainer.apply`."""
    with container.resources.ending_step():
        taken, refusal = _taken(container, container.resources.take)
    owned = _owned(container, taken, refusal, by_rows=set(container.tables))
    steps = dict.fromkeys(container.tables, container.counters.steps + 1)
    gathered = _Gathered([], {})
    with _committing(container) as commit:
        _check_owned(owned)
        with container.span("find"):
            gathered = _gathered(container, owned, steps)
        commit.num_rows = {each.table.name: len(each.keys) for each in gathered.updates}
    with container.span("update"):
        update(_with_empty(container, gathered.updates, commit.touched, steps))
    with container.span("write"):
        _write(container, gathered)
    container.end_step()


def apply_methods(container: StepContainer, choices: Mapping[str, MethodChoice]) -> list[str]:
    """As `StepContainer.apply_methods`."""
    with container.resources.ending_step():
        sources, refusal = _taken(container, container.resources.take_sources)
    waiting = {name: each for name, each in sources.items() if each is not None}
    try:
        _check_choices(waiting, choices)
    except InvalidArgumentError as error:
        refusal = refusal or error
    if refusal is None and goes_on_device(container, waiting, choices):
        check_memory(container)
        return apply_on_device(container, waiting, choices)
    step = None
    if refusal is None and any(isinstance(each, DeviceGradients) for each in waiting.values()):
        return _apply_owned(container, sources, choices, refusal)
    if container.collective.world_size == 1 and refusal is None and _is_fused(waiting, choices):
        step = _fused(container, waiting, choices)
        if step.doubtful():
            step = None
    if step is None:
        return _apply_owned(container, sources, choices, refusal)
    _check_rooms(container, waiting, step)
    check_memory(container)
    return _write_fused(container, step, list(waiting))


def _apply_owned(
    container: StepContainer,
    sources: Mapping[str, Any],
    choices: Mapping[str, MethodChoice],
    refusal: BaseException | None,
) -> list[str]:
    """By way of gradients in arrays: they may come from other ranks, or be skipped."""
    taken: dict[str, Accumulated] = {}
    if refusal is None:
        taken = {
            name: _summed(container, name, each) if each is not None else _nothing(container, name)
            for name, each in sources.items()
        }
    by_rows = set() if _is_fused(container.tables, choices) else set(container.tables)
    if container.collective.world_size > 1:
        # A storage that is reached by way of Python finds rows no faster fused; by rows, they are
        # found while gradients travel.
        by_rows |= {name for name in container.tables if not _is_native(container, name)}
    owned = _owned(container, taken, refusal, by_rows)
    if by_rows:
        return _apply_by_rows(container, owned, choices)
    step = None
    with _committing(container) as commit:
        _check_owned(owned)
        waiting = {
            name: _native.key_gradients(container.entry(name).view, each.keys, each.gradients)
            for name, each in owned.items()
        }
        _check_choices(waiting, choices)
        step = _fused(container, waiting, choices)
        _check_rooms(container, waiting, step)
        commit.num_rows = {name: len(each.keys) for name, each in owned.items()}
    assert step is not None
    _write_fused(container, step, list(waiting))
    return commit.touched


def _taken(
    container: StepContainer, take: Callable[[str], Any]
) -> tuple[dict[str, Any], BaseException | None]:
    """What was accumulated, by table, and why the step cannot be applied, if it cannot."""
    taken: dict[str, Any] = {}
    try:
        container.events.check()
        taken = {name: take(name) for name in container.tables}
    except Exception as error:
        container.discard()
        if container.collective.world_size == 1:
            raise
        return {}, error
    return taken, None


@dataclass(slots=True)
class _Commit:
    num_rows: dict[str, int]
    """Table → rows that this rank will change."""
    touched: list[str]
    """The tables of which any rank will change rows, in the order of declaration."""


@contextmanager
def _committing(container: StepContainer) -> Iterator[_Commit]:
    """What the block refuses, all ranks refuse: they go on from its end together, or not at all."""
    commit = _Commit({}, [])
    refusal: BaseException | None = None
    try:
        yield commit
        check_memory(container)
    except Exception as error:
        if container.collective.world_size == 1:
            raise
        refusal = error
    names = list(container.tables)
    totals = container.exchange.commit([commit.num_rows.get(name, 0) for name in names], refusal)
    commit.touched = [name for name, total in zip(names, totals, strict=True) if total]


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


def _is_fused(waiting: Iterable[str], choices: Mapping[str, MethodChoice]) -> bool:
    return all(
        isinstance(choices[name].method, NativeMethod) for name in waiting if name in choices
    )


def _check_rooms(container: StepContainer, waiting: Mapping[str, Any], step: Any) -> None:
    for place, name in enumerate(waiting):
        storage = container.storage(name)
        if _may_refuse(storage):
            _check_room(storage, step.count_new(place))


def _check_choices(waiting: Mapping[str, Any], choices: Mapping[str, MethodChoice]) -> None:
    for name in waiting:
        if name not in choices:
            raise InvalidArgumentError(
                f"table {name!r} has gradients, but no update method was chosen for it; chosen "
                f"are those of {', '.join(choices) or 'none'}",
                table=name,
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


def _summed(container: StepContainer, name: str, sources: Any) -> Accumulated:
    return Accumulated(*sources.summed(container.entry(name).view))


def _nothing(container: StepContainer, name: str) -> Accumulated:
    table = container.entry(name).config
    return Accumulated(np.empty(0, np.int64), np.empty((0, table.dim), table.computing_dtype))


def _owned(
    container: StepContainer,
    taken: Mapping[str, Accumulated],
    refusal: BaseException | None,
    by_rows: Set[str],
) -> dict[str, OwnedGradients]:
    """The finite gradients of all ranks for the keys of this one, by table; none without keys.

    Args:
        taken: this rank's gradients of all tables; none where there is a refusal.
        refusal: why this rank cannot apply the step.
        by_rows: the tables whose rows are wanted in arrays.
    """
    finite = finite_only(taken, container.non_finite, container.counters.steps)
    requests = []
    for name in container.tables:
        table = container.entry(name).config
        mine = finite.gradients.get(name) or _nothing(container, name)
        make = partial(container.resources.make_accumulator, table)
        # A storage that was not opened yet might have rows.
        storage = container.entry(name).storage if name in by_rows else None
        requests.append(PushRequest(table, mine.keys, mine.gradients, make, storage))
    with container.span("push"):
        pushed = container.exchange.push_all(requests, error=refusal or finite.refusal)
    container.counters.rows_skipped_non_finite += finite.num_skipped
    world_size = container.collective.world_size
    result = {}
    for request, owned in zip(requests, pushed, strict=True):
        if not len(owned.keys) and owned.error is None:
            continue
        if container.reduction is Reduction.MEAN and world_size > 1:
            np.divide(owned.gradients, world_size, out=owned.gradients)
        result[request.table.name] = owned
    return result


def _check_owned(owned: Mapping[str, OwnedGradients]) -> None:
    for each in owned.values():
        if each.error is not None:
            raise each.error


def _is_native(container: StepContainer, name: str) -> bool:
    storage = container.entry(name).storage
    return storage is None or storage.capabilities.native


@dataclass(slots=True)
class _Gathered:
    """What a step will change, and what will be counted when it has."""

    updates: list[TableUpdate]
    decisions: dict[str, Decision]


def _gathered(
    container: StepContainer, owned: Mapping[str, OwnedGradients], steps: Mapping[str, int]
) -> _Gathered:
    """The rows that gradients will change, in arrays.

    Args:
        owned: table → its gradients, some in each.
        steps: table → the step that is given to its `TableUpdate`.
    """
    gathered = _Gathered([], {})
    for name, each in owned.items():
        entry = container.entry(name)
        storage = container.storage(name)
        keys, gradients = each.keys, each.gradients
        if each.found is not None:
            rows, found = each.found.rows, each.found.found
        else:
            rows = np.empty((len(keys), entry.config.width), entry.config.numpy_dtype)
            found = np.empty(len(keys), np.bool_)
            storage._find_impl(keys, entry.whole, rows, found)
        if entry.admission_filter is not None and not found.all():
            decision = decide_unseen(
                entry.admission_filter, keys, found, container.counters.steps + 1
            )
            gathered.decisions[name] = decision
            keys, gradients = keys[decision.is_kept], gradients[decision.is_kept]
            rows, found = rows[decision.is_kept], found[decision.is_kept]
        if not len(keys):
            continue
        _check_room(storage, int(len(found) - np.count_nonzero(found)))
        _native.initialize(rows, keys, found, entry.initializer, entry.initial_state)
        rows = computing_rows(entry.config, rows)
        gathered.updates.append(TableUpdate(entry.config, keys, rows, gradients, steps[name]))
    return gathered


def _count_refused(container: StepContainer, name: str, num_refused: int) -> None:
    container.entry(name).num_not_admitted += num_refused
    container.counters.gradients_not_admitted += num_refused


def _apply_by_rows(
    container: StepContainer,
    owned: Mapping[str, OwnedGradients],
    choices: Mapping[str, MethodChoice],
) -> list[str]:
    gathered = _Gathered([], {})
    with _committing(container) as commit:
        _check_owned(owned)
        _check_choices(owned, choices)
        steps = {name: choices[name].step for name in owned}
        gathered = _gathered(container, owned, steps)
        commit.num_rows = {name: len(each.keys) for name, each in owned.items()}
    for update in gathered.updates:
        choice, dim = choices[update.table.name], update.table.dim
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
    _write(container, gathered)
    container.end_step()
    return commit.touched


def _write(container: StepContainer, gathered: _Gathered) -> None:
    container.saves.wait_for_room()
    names = [update.table.name for update in gathered.updates]
    for place, update in enumerate(gathered.updates):
        entry = container.entry(update.table.name)
        rounding = Rounding(update.keys, entry.initializer.rounding_seed, update.step)
        rows = stored_rows(update.table, update.rows, rounding)
        try:
            with entry.watch.writing(update.keys) as write:
                evicted = container.storage(update.table.name)._upsert_impl(update.keys, rows, None)
                write.note_evicted(evicted)
        except Exception as error:
            container.aheads.note(update.table.name, None)
            _record(container, gathered, names[:place])
            _raise_interrupted(
                container, error, names[:place], names[place : place + 1], names[place + 1 :]
            )
        # What was evicted reads as its initial value again.
        container.aheads.note(update.table.name, None if len(evicted) else update.keys)
        container.counters.rows_evicted += len(evicted)
        container.counters.rows_updated += len(update.keys)
    _record(container, gathered, list(gathered.decisions))


def _record(container: StepContainer, gathered: _Gathered, names: Sequence[str]) -> None:
    for name, decision in gathered.decisions.items():
        if name in names:
            decision.record()
            _count_refused(container, name, decision.num_refused)


def _write_fused(container: StepContainer, step: Any, names: Sequence[str]) -> list[str]:
    """Returns the tables that had gradients: a batch may have no id for a table that it holds."""
    container.saves.wait_for_room()
    failure = _applied_fused(container, step, names)
    touched, written, failed = [], [], []
    for place, (name, outcome) in enumerate(zip(names, step.outcomes(), strict=True)):
        if outcome is None:
            container.aheads.note(name, None)
            failed.append(name)
            continue
        updated, _, refused, evicted = outcome
        if container.aheads.are_any:
            container.aheads.note(name, None if evicted else step.keys(place))
        container.counters.rows_updated += updated
        container.counters.rows_evicted += evicted
        _count_refused(container, name, refused)
        if updated:
            written.append(name)
        if updated or refused:
            touched.append(name)
    if failure is not None:
        _raise_interrupted(container, failure, written, failed)
    container.end_step()
    return touched


def _applied_fused(container: StepContainer, step: Any, names: Sequence[str]) -> Exception | None:
    """Writes; returns what went wrong."""
    with ExitStack() as watched:
        writes = {}
        for place, name in enumerate(names):
            watch = container.entry(name).watch
            if watch.is_active:
                writes[place] = watched.enter_context(watch.writing(step.keys(place)))
        try:
            with container.span("update"):
                step.apply()
        except Exception as error:
            return error
        finally:
            for place, write in writes.items():
                table = container.entry(names[place]).config
                write.note_evicted(fused_evicted(step, place, table))
    return None


def _raise_interrupted(
    container: StepContainer,
    error: Exception,
    written: Sequence[str],
    failed: Sequence[str],
    untouched: Sequence[str] = (),
) -> NoReturn:
    """Raises what a storage raised while it wrote: as it is, if no other table has changed."""
    if not written:
        raise error
    unchanged = f"; not changed: {', '.join(untouched)}" if untouched else ""
    raise PartialStepError(
        f"step {container.counters.steps + 1} reached some of its tables only, as writing "
        f"{failed[0]} failed ({type(error).__name__}: {error}). Changed: {', '.join(written)}; "
        f"failed: {', '.join(failed)}{unchanged}. Mend what failed, then load a snapshot; or go "
        "on, if a step that part of the tables took does no harm",
        written=tuple(written),
        failed=tuple(failed),
        untouched=tuple(untouched),
    ) from error


def _may_refuse(storage: Storage) -> bool:
    return not storage.capabilities.evicts and storage.capacity is not None


def _check_room(storage: Storage, num_new: int) -> None:
    """Refuses a step before its first write where a later write would be refused."""
    if not _may_refuse(storage):
        return
    size, capacity = storage.size, storage.capacity
    assert capacity is not None
    if size + num_new > capacity:
        raise CapacityError(
            f"table {storage.table.name!r} holds {size} rows and may hold {capacity}; this step "
            f"would add {num_new}. No row was changed. Raise its capacity, or choose a policy "
            "that evicts",
            table=storage.table.name,
            capacity=capacity,
        )
