"""Writes what a step has computed, counts it, and says how far it came where a storage failed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn

from sparring.applying.gathering import Gathered
from sparring.errors import PartialStepError
from sparring.kernels import Rounding
from sparring.row_parts import stored_rows
from sparring.storage.updating import fused_evicted

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["count_refused", "raise_interrupted", "write_fused", "write_rows"]


def write_rows(container: StepContainer, gathered: Gathered, before: Sequence[str] = ()) -> None:
    """Upserts rows that were computed in arrays, a table at a time.

    Args:
        before: the tables that the step has changed already.
    """
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
            raise_interrupted(
                container,
                error,
                [*before, *names[:place]],
                names[place : place + 1],
                names[place + 1 :],
            )
        # What was evicted reads as its initial value again.
        container.aheads.note(update.table.name, None if len(evicted) else update.keys)
        container.counters.rows_evicted += len(evicted)
        container.counters.rows_updated += len(update.keys)
    _record(container, gathered, list(gathered.decisions))


def _record(container: StepContainer, gathered: Gathered, names: Sequence[str]) -> None:
    for name, decision in gathered.decisions.items():
        if name in names:
            decision.record()
            count_refused(container, name, decision.num_refused)


def write_fused(
    container: StepContainer, step: Any, names: Sequence[str], before: Sequence[str] = ()
) -> list[str]:
    """Lets native code find, compute and write rows in one visit.

    Args:
        before: the tables that the step has changed already.

    Returns:
        The tables that had gradients: a batch may have no id for a table that it holds.
    """
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
        count_refused(container, name, refused)
        if updated:
            written.append(name)
        if updated or refused:
            touched.append(name)
    if failure is not None:
        raise_interrupted(container, failure, [*before, *written], failed)
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


def count_refused(container: StepContainer, name: str, num_refused: int) -> None:
    """Counts gradients that an admission filter dropped."""
    container.entry(name).num_not_admitted += num_refused
    container.counters.gradients_not_admitted += num_refused


def raise_interrupted(
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
