"""Switches to newer versions while calls are answered: periodically, and after hints."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

from sparring import EventLoop
from sparring.errors import SparringError
from sparring_serve.metrics import ServingMetrics
from sparring_serve.tables.contract import ServingTables

__all__ = ["Refresher", "RefreshResult"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """Result of a check for a newer version."""

    is_new: bool
    refused: str = ""
    """Reason why a newer version was rejected and the old one is still served."""


class Refresher:
    """Checks for newer versions from a coroutine on an event loop; the tables do the work on a
    thread.

    A rejected version is counted and logged once; later versions are tried as usual.

    Args:
        tables: Tables to refresh.
        metrics: Receives the counters.
        poll_seconds: Interval of the checks; None: only hints.
    """

    def __init__(
        self, tables: ServingTables, metrics: ServingMetrics, poll_seconds: float | None
    ) -> None:
        self._tables = tables
        self._metrics = metrics
        self._poll_seconds = poll_seconds
        self._one_at_a_time = threading.Lock()
        self._last_refused = ""
        self._events = EventLoop(capacity=4, num_threads=1)
        self._stopped: Future[None] = Future()
        self.last_seconds = 0.0
        """Duration of the last switch to a newer version."""
        if poll_seconds is not None:
            self._events.submit(self._poll, name="polls for newer versions")

    async def _poll(self) -> None:
        stopped = asyncio.wrap_future(self._stopped)
        while not (await asyncio.wait({stopped}, timeout=self._poll_seconds))[0]:
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> RefreshResult:
        """Checks once, on this thread; concurrent checks wait for each other."""
        with self._one_at_a_time:
            begin = time.perf_counter()
            try:
                is_new = self._tables.refresh()
            except SparringError as error:
                refused = str(error)
                self._metrics.count_refresh("refused")
                if refused != self._last_refused:
                    _log.warning(
                        "a newer version is rejected, and the old one is still served: %s", refused
                    )
                self._last_refused = refused
                return RefreshResult(False, refused)
            except Exception as error:
                # The served version is unaffected, and the next check may succeed.
                self._metrics.count_refresh("refused")
                _log.exception("a check for a newer version failed")
                return RefreshResult(False, f"{type(error).__name__} in this server; check its log")
            self._last_refused = ""
            self._metrics.count_refresh("taken" if is_new else "unchanged")
            if is_new:
                self.last_seconds = time.perf_counter() - begin
                newest = self._tables.versions()[0]
                _log.info(
                    "step %d, version %s, is now served; the switch took %.3f s",
                    newest.step, newest.hash, self.last_seconds,
                )  # fmt: skip
            return RefreshResult(is_new)

    def hint(self, timeout_seconds: float) -> RefreshResult:
        """Runs `refresh` on the background thread.

        Raises:
            DeadlineError: It continues in the background.
        """
        found: RefreshResult = self._events.submit(
            self.refresh, name="refresh", timeout=timeout_seconds, report_failure=False
        ).result(timeout_seconds)
        return found

    def close(self) -> None:
        """Stops the checks; waits for a check in progress."""
        if not self._stopped.done():
            self._stopped.set_result(None)
        self._events.close()
