"""Flushes: make the rows that steps have written durable, on the event loop.

A flush changes where rows are stored, so it counts as a writer. The next step, save, load or change
of the optimizer state waits for the flush before it accesses a row. Lookups, forward and backward
passes continue in storages with concurrent reads; other storages are flushed before `begin`
returns.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from sparring.contracts.storage.storage import Storage
from sparring.errors import SparringError
from sparring.runtime.events import EventLoop
from sparring.runtime.lifecycle import call_each
from sparring.runtime.pool import Task
from sparring.storage.load import BusyStorages

__all__ = ["FlushManager"]

_log = logging.getLogger(__name__)


class FlushManager:
    """Runs the flushes of a container's tables, one at a time.

    Args:
        events: event loop on which they run.
        at_work: registry of the storages that are being flushed.
        max_seconds: timeout of `join`; None: no timeout.
    """

    def __init__(
        self, events: EventLoop, at_work: BusyStorages, max_seconds: float | None = None
    ) -> None:
        self._events = events
        self._at_work = at_work
        self._max_seconds = max_seconds
        self.task: Task[Any] | None = None
        """The last flush; None after it was joined."""

    def begin(self, storages: Mapping[str, Storage], *, report_failure: bool) -> Task[Any]:
        """Starts a flush of storages.

        Args:
            storages: open storages by table. No writes are allowed until `join` has returned.
            report_failure: whether `EventLoop.check` reports a failure, in addition to the task.

        Raises:
            SparringError: a storage without concurrent reads failed. The others were flushed.
            DeadlineError: the previous flush did not finish in time.
        """
        self.join()
        concurrent = {
            name: each for name, each in storages.items() if each.capabilities.concurrent_reads
        }
        failure = _flush({name: each for name, each in storages.items() if name not in concurrent})
        self._at_work.begin(concurrent.values())
        name = f"flush of tables {', '.join(storages)}"
        try:
            self.task = self._events.submit(
                partial(self._run, concurrent), name=name, report_failure=report_failure
            )
        except BaseException:
            self._at_work.end()
            raise
        if failure is not None:
            self.join()
            raise failure
        return self.task

    def join(self) -> None:
        """Waits for the flush, so that rows may change. `EventLoop.check` reports its failure.

        Raises:
            DeadlineError: the flush did not finish in time.
        """
        task = self.task
        if task is None:
            return
        try:
            task.result(self._max_seconds)
        except Exception:
            if not task.done():
                raise
        self.task = None

    def _run(self, storages: Mapping[str, Storage]) -> None:
        """Runs on a thread of the event loop. Reports the failure of a flush even if a storage that is
        closed afterwards fails too."""

        def flush() -> None:
            failure = _flush(storages)
            if failure is not None:
                raise failure

        call_each([flush, self._at_work.end])


def _flush(storages: Mapping[str, Storage]) -> SparringError | None:
    """Flushes all storages, even if some fail; returns the first failure."""
    first: SparringError | None = None
    for name, storage in storages.items():
        try:
            storage.flush()
        except SparringError as error:
            if first is not None:
                about = {"table": name}
                _log.error("the flush of table %r also failed: %s", name, error, extra=about)
            first = first or error
    return first
