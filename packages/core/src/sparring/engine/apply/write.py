"""Writes the rows of a step, counts them, and reports the tables that changed if a storage failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from sparring.contracts.device.kernel_set import (
    EvictionResult,
    KernelSet,
    StorageChange,
    StorageUpdate,
)
from sparring.contracts.device.kernels import DeviceArray
from sparring.contracts.storage.results import EvictedRows, Rows
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.table import TableConfig
from sparring.engine.apply.gather import GatheredRows, TableUpdate
from sparring.engine.apply.gradients import group_by_device
from sparring.engine.state import EngineState
from sparring.engine.tables.column_blocks import round_rows
from sparring.errors import PartialStepError
from sparring.exchange.messages import OwnedGradients
from sparring.kernels.admission_filters import Decision
from sparring.storage.update import read_fused_evicted

__all__ = ["write_fused", "write_methods", "write_rows"]


def write_rows(
    state: EngineState, gathered: Mapping[str, GatheredRows], before: Sequence[str] = ()
) -> None:
    """Upserts rows that were computed in arrays, one table at a time.

    Args:
        state: state of the engine.
        gathered: rows by table.
        before: tables that the step has already changed.

    Raises:
        Exception: the error of a storage; no other table has changed.
        PartialStepError: a storage failed after other tables had changed.
    """
    written: list[str] = []
    for name, each in gathered.items():
        if each.update is not None:
            try:
                _upsert(state, name, each, each.update)
            except Exception as error:
                state.prefetches.note(name, None)
                names = [each for each, some in gathered.items() if some.update is not None]
                untouched = names[len(written) + 1 :]
                _raise_partial_step(state, error, [*before, *written], [name], untouched)
            written.append(name)
        if each.decision is not None:
            is_block = state.tables.entries[name].block is not None
            each.decision.record(in_order=is_block)
            _count_not_admitted(state, name, each.decision.num_rejected)


def _upsert(state: EngineState, name: str, gathered: GatheredRows, update: TableUpdate) -> None:
    entry, kernels, rows = state.tables.entries[name], gathered.kernels, update.rows
    if update.table.is_narrow:
        rows = round_rows(entry, update.keys, rows, update.step, kernels)
    assert entry.storage is not None
    if gathered.row_handles is None:
        upsert = partial(kernels.upsert_storage, entry.storage, update.keys, rows)
    else:
        upsert = partial(_upsert_by_handles, gathered.row_handles, update.table, rows)
    _write(state, name, kernels, update.keys, upsert)
    state.counters.rows_updated += len(update.keys) if entry.is_first else 0


def _upsert_by_handles(
    row_handles: Any, table: TableConfig, rows: Rows, *, keeps_evicted: bool = False
) -> EvictionResult:
    keys, left, scores = row_handles.upsert(rows)
    evicted = EvictedRows(keys, left.view(table.numpy_dtype), scores) if keeps_evicted else None
    return EvictionResult(len(keys), evicted)


def write_methods(
    state: EngineState,
    owned: Mapping[str, OwnedGradients],
    choices: Mapping[str, MethodChoice],
    after: Sequence[str] = (),
) -> list[str] | None:
    """Updates rows in place with update methods of core, all tables of a device together.

    Args:
        state: state of the engine.
        owned: gradients by table.
        choices: update method by table.
        after: tables that the step changes after the tables of `owned`.

    Returns:
        The tables that have changed, without tables of which a filter admitted no key. None if
        gradients with an unchecked `num_bad` are not finite; then nothing has changed.

    Raises:
        DeviceMemoryError, DeviceError: the device failed or was full; no row has changed.
        PartialStepError: the device failed after other tables had changed.
    """
    todo, changed = list(owned), list[str]()
    for _, names in group_by_device({name: each.kernels for name, each in owned.items()}):
        asked = {name: _make_query(state, name, owned[name]) for name in names}
        changes = list[StorageChange]()
        is_finite, failure = _update_tables(state, owned, choices, asked, changes)
        if not is_finite:
            return None
        for name, change in zip(names, changes, strict=False):
            todo.remove(name)
            state.counters.rows_evicted += change.evicted.count
            num_changed, question = len(owned[name].keys), asked[name]
            if question is not None:
                num_rejected = question.record()
                _count_not_admitted(state, name, num_rejected)
                num_changed -= num_rejected
            state.counters.rows_updated += num_changed
            if num_changed:
                changed.append(name)
        if failure is not None:
            failed = names[len(changes)]
            todo.remove(failed)
            state.prefetches.note(failed, None)
            _raise_partial_step(state, failure, changed, [failed], [*todo, *after])
    return changed


def _update_tables(
    state: EngineState,
    owned: Mapping[str, OwnedGradients],
    choices: Mapping[str, MethodChoice],
    asked: Mapping[str, _AdmissionQuery | None],
    changes: list[StorageChange],
) -> tuple[bool, Exception | None]:
    """Updates the tables of `asked`, which are on one device, and notifies saves and prefetches.

    Args:
        state: state of the engine.
        owned: gradients by table.
        choices: update method by table.
        asked: query to the admission filter by table.
        changes: the changes of the updated tables are appended here.

    Returns:
        Whether gradients were finite, and the error of a failed update.
    """
    updates, keys = list[StorageUpdate](), dict[str, npt.NDArray[np.int64]]()
    is_finite, failure = True, None
    with ExitStack() as logged, state.span("update"):
        writes = dict[str, Any]()
        for name, question in asked.items():
            entry, each = state.tables.entries[name], owned[name]
            log = entry.write_log
            if log.is_active or state.prefetches.unfinished:
                keys[name] = np.ascontiguousarray(each.kernels.arrays.to_host(each.keys))
            if log.is_active:
                writes[name] = logged.enter_context(log.writing(keys[name]))
            updates.append(
                StorageUpdate(
                    state.tables.storage(name),
                    choices[name],
                    each.keys,
                    each.gradients,
                    entry.initial_state,
                    question,
                    log.is_active,
                )
            )
        if updates:
            kernels, num_bad = each.kernels, each.num_bad
            try:
                is_finite = kernels.update_tables(updates, num_bad, changes) is not None
            except Exception as error:
                failure = error
        for name, change in zip(asked, changes, strict=False):
            if name in writes and change.evicted.rows is not None:
                writes[name].note_evicted(change.evicted.rows)
    for name, change in zip(asked, changes, strict=False):
        if name in keys:
            # Evicted keys read as their initial value again, so any key may have changed.
            state.prefetches.note(name, None if change.evicted.count else keys[name])
    return is_finite, failure


def _make_query(state: EngineState, name: str, owned: OwnedGradients) -> _AdmissionQuery | None:
    admission_filter = state.tables.entries[name].admission_filter
    if admission_filter is None:
        return None
    return _AdmissionQuery(admission_filter, state.counters.steps + 1, owned.decision)


@dataclass(slots=True)
class _AdmissionQuery:
    """Query to an admission filter, and its reply."""

    admission_filter: Any
    step: int
    decision: Decision | None
    """Earlier reply about all keys that have no row; the filter is queried only once."""
    answered: tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]] | None = None
    """Keys, and whether each was admitted."""

    def __call__(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        is_admitted: npt.NDArray[np.bool_]
        if self.decision is None:
            is_admitted = self.admission_filter.decide(keys, self.step)
        else:
            order = np.argsort(self.decision.unseen)
            positions = np.searchsorted(self.decision.unseen, keys, sorter=order)
            is_admitted = self.decision.is_admitted[order[positions]]
        self.answered = keys, is_admitted
        return is_admitted

    def record(self) -> int:
        """Records the keys in the filter after the step was applied. Returns the number of keys that
        were not admitted."""
        if self.answered is None:
            return 0
        self.admission_filter.record(*self.answered)
        return int(np.count_nonzero(~self.answered[1]))


def _write(
    state: EngineState,
    name: str,
    kernels: KernelSet,
    keys: DeviceArray,
    change: Callable[..., EvictionResult],
) -> None:
    """Writes the rows of `keys`, and notifies saves and prefetches.

    Args:
        state: state of the engine.
        name: name of the entry.
        kernels: kernels of its device.
        keys: keys that are written.
        change: function that writes the rows. With ``keeps_evicted=True`` it also copies evicted
            rows to host memory.
    """
    log, prefetches = state.tables.entries[name].write_log, state.prefetches
    if log.is_active or prefetches.unfinished:
        on_host = np.ascontiguousarray(kernels.arrays.to_host(keys))
        with log.writing(on_host) as write:
            evicted = change(keeps_evicted=log.is_active)
            if evicted.rows is not None:
                write.note_evicted(evicted.rows)
        # Evicted keys read as their initial value again, so any key may have changed.
        prefetches.note(name, None if evicted.count else on_host)
    else:
        evicted = change(keeps_evicted=False)
    state.counters.rows_evicted += evicted.count


def write_fused(
    state: EngineState, step: Any, names: Sequence[str], before: Sequence[str] = ()
) -> list[str]:
    """Runs a fused step, which finds, computes and writes rows in native code.

    Args:
        state: state of the engine.
        step: native `FusedStep`.
        names: entries of the step.
        before: tables that the step has already changed.

    Returns:
        The tables that had gradients; a batch may contain no id of a table.
    """
    failure = _apply_fused(state, step, names)
    touched, written, failed = [], [], []
    for position, (name, outcome) in enumerate(zip(names, step.outcomes(), strict=True)):
        if outcome is None:
            state.prefetches.note(name, None)
            failed.append(name)
            continue
        updated, _, refused, evicted = outcome
        if state.prefetches.unfinished:
            state.prefetches.note(name, None if evicted else step.keys(position))
        state.counters.rows_updated += updated
        state.counters.rows_evicted += evicted
        _count_not_admitted(state, name, refused)
        if updated:
            written.append(name)
        if updated or refused:
            touched.append(name)
    if failure is not None:
        _raise_partial_step(state, failure, [*before, *written], failed)
    return touched


def _apply_fused(state: EngineState, step: Any, names: Sequence[str]) -> Exception | None:
    """Applies the fused step; returns its error."""
    with ExitStack() as logged:
        writes = {}
        for position, name in enumerate(names):
            log = state.tables.entries[name].write_log
            if log.is_active:
                writes[position] = logged.enter_context(log.writing(step.keys(position)))
        try:
            with state.span("update"):
                step.apply()
        except Exception as error:
            return error
        finally:
            for position, write in writes.items():
                table = state.tables.entries[names[position]].config
                write.note_evicted(read_fused_evicted(step, position, table))
    return None


def _count_not_admitted(state: EngineState, name: str, num_rejected: int) -> None:
    """Counts gradients that an admission filter dropped."""
    entry = state.tables.entries[name]
    entry.num_not_admitted += num_rejected
    state.counters.gradients_not_admitted += num_rejected if entry.is_first else 0


def _raise_partial_step(
    state: EngineState,
    error: Exception,
    written: Sequence[str],
    failed: Sequence[str],
    untouched: Sequence[str] = (),
) -> NoReturn:
    """Raises the error of a storage that failed while it wrote; as `PartialStepError` if other tables
    have changed."""
    if not written:
        raise error
    unchanged = f"; not changed: {', '.join(untouched)}" if untouched else ""
    raise PartialStepError(
        f"step {state.counters.steps + 1} reached only some of its tables, because writing "
        f"{failed[0]} failed ({type(error).__name__}: {error}). Changed: {', '.join(written)}; "
        f"failed: {', '.join(failed)}{unchanged}. Fix the cause, then load a snapshot; or continue, "
        "if a partially applied step is acceptable",
        written=tuple(written),
        failed=tuple(failed),
        untouched=tuple(untouched),
    ) from error
