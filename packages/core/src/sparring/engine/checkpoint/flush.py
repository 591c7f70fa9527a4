"""Flush of all tables, which all ranks wait for or which runs in the background."""

from __future__ import annotations

from sparring.collective.coordinator import Coordinator
from sparring.engine.state import EngineState, Purpose, quiesce, try_quiesce
from sparring.runtime.pool import Task

__all__ = ["flush"]


def flush(state: EngineState, *, blocking: bool) -> Task[None] | None:
    """Implements `StepContainer.flush`."""
    state.check_open()
    storages = {
        name: entry.storage
        for name, entry in list(state.tables.entries.items())
        if entry.storage is not None
    }
    # A save reads rows, which a storage without concurrent reads does not allow during a flush.
    are_read = all(each.capabilities.concurrent_reads for each in storages.values())
    purpose = Purpose.READ if are_read else Purpose.REPLACE
    if not blocking:
        quiesce(state, purpose)
        return state.flushes.begin(storages, report_failure=True)
    error = try_quiesce(state, purpose)
    coordinator = Coordinator(state.collective, "flush")
    coordinator.start()
    try:
        if error is None:
            state.flushes.begin(storages, report_failure=False).result()
    except Exception as failure:
        error = failure
    except BaseException as reason:
        coordinator.abort(reason)
        raise
    coordinator.agree(error)
    return None
