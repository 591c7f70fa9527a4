"""Writes what a step has computed, counts it, and says how far it came where a storage failed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NoReturn

from sparring.contracts.kernels import Rounding
from sparring.engine.apply.gather import Gathered
from sparring.engine.state import EngineState
from sparring.errors import PartialStepError
from sparring.kernels.mixed_precision import stored_rows
from sparring.storage.update import fused_evicted

__all__ = ["count_refused", "raise_interrupted", "write_fused", "write_rows"]


def write_rows(state: EngineState, gathered: Gathered, before: Sequence[str] = ()) -> None:
    """Upserts rows that were computed in arrays, a table at a time.

    Args:
        before: the tables that the step has changed already.
    """
    names = [update.table.name for update in gathered.updates]
    for place, update in enumerate(gathered.updates):
        entry = state.tables.entries[update.table.name]
        rows = update.rows
        if update.table.is_16_bit:
            rounding = Rounding(update.keys, entry.initializer.rounding_seed, update.step)
            rows = stored_rows(update.table, rows, rounding)
        try:
            with entry.write_log.writing(update.keys) as write:
                evicted = state.tables.open(entry).upsert_from(update.keys, rows)
                write.note_evicted(evicted)
        except Exception as error:
            state.prefetches.note(update.table.name, None)
            _record(state, gathered, names[:place])
            raise_interrupted(
                state,
                error,
                [*before, *names[:place]],
                names[place : place + 1],
                names[place + 1 :],
            )
        # What was evicted reads as its initial value again.
        if state.prefetches.unfinished:
            state.prefetches.note(update.table.name, None if len(evicted) else update.keys)
        state.counters.rows_evicted += len(evicted)
        state.counters.rows_updated += len(update.keys)
    _record(state, gathered, list(gathered.decisions))


def _record(state: EngineState, gathered: Gathered, names: Sequence[str]) -> None:
    for name, decision in gathered.decisions.items():
        if name in names:
            decision.record()
            count_refused(state, name, decision.num_refused)


def write_fused(
    state: EngineState, step: Any, names: Sequence[str], before: Sequence[str] = ()
) -> list[str]:
    """Lets native code find, compute and write rows in one visit.

    Args:
        before: the tables that the step has changed already.

    Returns:
        The tables that had gradients: a batch may have no id for a table that it holds.
    """
    failure = _applied_fused(state, step, names)
    touched, written, failed = [], [], []
    for place, (name, outcome) in enumerate(zip(names, step.outcomes(), strict=True)):
        if outcome is None:
            state.prefetches.note(name, None)
            failed.append(name)
            continue
        updated, _, refused, evicted = outcome
        if state.prefetches.unfinished:
            state.prefetches.note(name, None if evicted else step.keys(place))
        state.counters.rows_updated += updated
        state.counters.rows_evicted += evicted
        count_refused(state, name, refused)
        if updated:
            written.append(name)
        if updated or refused:
            touched.append(name)
    if failure is not None:
        raise_interrupted(state, failure, [*before, *written], failed)
    return touched


def _applied_fused(state: EngineState, step: Any, names: Sequence[str]) -> Exception | None:
    """Writes; returns what went wrong."""
    with ExitStack() as logged:
        writes = {}
        for place, name in enumerate(names):
            log = state.tables.entries[name].write_log
            if log.is_active:
                writes[place] = logged.enter_context(log.writing(step.keys(place)))
        try:
            with state.span("update"):
                step.apply()
        except Exception as error:
            return error
        finally:
            for place, write in writes.items():
                table = state.tables.entries[names[place]].config
                write.note_evicted(fused_evicted(step, place, table))
    return None


def count_refused(state: EngineState, name: str, num_refused: int) -> None:
    """Counts gradients that an admission filter dropped."""
    state.tables.entries[name].num_not_admitted += num_refused
    state.counters.gradients_not_admitted += num_refused


def raise_interrupted(
    state: EngineState,
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
        f"step {state.counters.steps + 1} reached some of its tables only, as writing "
        f"{failed[0]} failed ({type(error).__name__}: {error}). Changed: {', '.join(written)}; "
        f"failed: {', '.join(failed)}{unchanged}. Mend what failed, then load a snapshot; or go "
        "on, if a step that part of the tables took does no harm",
        written=tuple(written),
        failed=tuple(failed),
        untouched=tuple(untouched),
    ) from error
