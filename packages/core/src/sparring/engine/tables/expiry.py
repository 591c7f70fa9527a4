"""Removes rows whose TTL has passed since their last access. All ranks remove rows at the same
steps."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sparring.collective.coordinator import Coordinator
from sparring.contracts.storage.results import Columns
from sparring.engine.state import EngineState, Purpose, try_quiesce
from sparring.engine.tables.entry import TableEntry

__all__ = ["note_step"]

_ERASE_BATCH_KEYS = 65_536

_log = logging.getLogger(__name__)


def note_step(state: EngineState) -> None:
    """Records the accesses of an applied step, and removes expired rows if a sweep is due.

    Raises:
        SparringError: rows could not be removed on some rank; the step was applied.
    """
    due, error = [], None
    for entry in state.tables.expiring:
        visits, step = entry.visits, state.counters.steps
        assert visits is not None
        visits.seal(step)
        try:
            if not visits.is_complete and entry.storage is not None:
                chunks = entry.storage.scan(columns=Columns(0, 1))
                visits.adopt((chunk.keys.copy() for chunk in chunks), step)
        except Exception as failure:  # raised after the sweep, because other ranks may wait in it
            error = failure
        if visits.is_due(step):
            due.append(entry)
    if due:
        _sweep(state, due, error)
    elif error is not None:
        raise error


def _sweep(state: EngineState, entries: Sequence[TableEntry], error: Exception | None) -> None:
    error = try_quiesce(state, Purpose.RESHAPE, error)
    coordinator = Coordinator(state.collective, f"expiry of rows after step {state.counters.steps}")
    now: float = coordinator.gather(state.clock())[0]
    try:
        for entry in entries:
            if error is None:
                _remove(state, entry, now)
    except Exception as failure:
        error = failure
    coordinator.agree(error)


def _remove(state: EngineState, entry: TableEntry, now: float) -> None:
    """Erases the expired rows of one table. Saves, deltas and prefetches are notified as for any
    write."""
    visits, storage = entry.visits, entry.storage
    assert visits is not None
    keys = visits.take_expired(state.counters.steps, now)
    if storage is None or not len(keys):
        return
    visits.is_complete, num_rows = False, 0  # stays False if an erase fails
    for begin in range(0, len(keys), _ERASE_BATCH_KEYS):
        if state.saves.running is not None:
            state.saves.wait_for_capacity()
        num_rows += storage.erase(keys[begin : begin + _ERASE_BATCH_KEYS])
    state.counters.rows_expired += num_rows if entry.is_first else 0
    visits.drop_pending()
    visits.is_complete = True
    name = entry.config.name
    _log.info("%s rows of table %r expired", f"{num_rows:,}", name, extra={"table": name})
    if state.prefetches.unfinished:
        state.prefetches.note(name, None)
