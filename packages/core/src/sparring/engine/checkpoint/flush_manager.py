"""Flushes: rows that steps have written are made durable, on the event loop.

A flush changes where rows are stored, so it takes the place of a writer: the next step, save, load or
change of the optimizer's state joins it before it touches a row. Lookups, forward and backward passes go
on concurrently in storages with concurrent reads; the others are flushed before `begin` returns.
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
    """The flushes of a container's tables, one at a time.

    Args:
        events: where they run.
        at_work: knows of the storages that are flushed.
        most_seconds: how long `join` waits; None: as long as it takes.
    """

    def __init__(
        self, events: EventLoop, at_work: BusyStorages, max_seconds: float | None = None
    ) -> None:
        self._events = events
        self._at_work = at_work
        self._max_seconds = max_seconds
        self.task: Task[Any] | None = None
        """The last flush, until it was joined."""

    def begin(self, storages: Mapping[str, Storage], *, report_failure: bool) -> Task[Any]:
        """Flushes storages, by the name of their table.

        Args:
            storages: open; no write to them until `join` has returned.
            report_failure: `EventLoop.check` tells of a failure, not the task alone.

        Raises:
            SparringError: a storage without concurrent reads failed. The others were
                flushed.
            DeadlineError: the flush before it does not end.
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
        """Returns when no flush runs, so that rows may change. `EventLoop.check` has its failure.

        Raises:
            DeadlineError: it does not end.
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
        """On a thread of the event loop. A storage that is closed after it hides no failure."""

        def flush() -> None:
            failure = _flush(storages)
            if failure is not None:
                raise failure

        call_each([flush, self._at_work.end])


def _flush(storages: Mapping[str, Storage]) -> SparringError | None:
    """Flushes all, whichever fails; returns the first failure."""
    first: SparringError | None = None
    for name, storage in storages.items():
        try:
            storage.flush()
        except SparringError as error:
            if first is not None:
                about = {"table": name}
                _log.error("the flush of table %r failed, too: %s", name, error, extra=about)
            first = first or error
    return first
