"""Writes metrics periodically, between steps, on the container's event loop."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sparring.contracts import Closable
from sparring.errors import (
    ClosedError,
    DeadlineError,
    InvalidArgumentError,
    StorageIOError,
)
from sparring_train.metrics_files.container_metrics import read_metrics
from sparring_train.metrics_files.json_lines import JsonLines
from sparring_train.metrics_files.prometheus import PrometheusFile, PrometheusPage

if TYPE_CHECKING:
    from sparring import StepContainer
    from sparring.adapter import Task
    from sparring_cli import MetricsAccess

__all__ = ["MetricsFormat", "MetricsWriter"]

_log = logging.getLogger(__name__)


class MetricsFormat(Enum):
    """Format of a metrics file."""

    JSONL = "jsonl"
    """One JSON object per line, appended."""
    PROMETHEUS = "prometheus"
    """Prometheus' text format; each write replaces the file."""


class MetricsWriter(Closable):
    """Writes all counters of a container to a file periodically while it makes steps.

    If a write is due after a step, the thread that makes steps copies the counters, and the
    container's event loop writes them. At most one write is in flight; further ones are skipped and
    counted. A write that fails raises `BackgroundError` at the next step, which changes nothing and
    can be retried; the next write is attempted as usual.

    Use:
        with StepContainer() as container, MetricsWriter(container, "metrics.jsonl"):
            …

    Args:
        container: contains the counters; close the writer before it.
        path: path of the file. ``{rank}`` and ``{world_size}`` are replaced by their values; without
            ``{rank}``, only rank 0 writes, and only its own counters. None: no file.
        every_seconds: minimum time between two writes, except the last one.
        file_format: format of the file.
        port: port on which Prometheus can scrape the latest metrics; rank r uses ``port + r``, and 0
            selects a free port. None: no port.
        host: address of that port.
        access: token and certificate of that port; None: plain text for everyone.
        more: returns further sections of metrics; called by the thread that makes steps.

    Attributes:
        path: the file that this rank writes, or None.
        port: the port that this rank listens on, or None.
        num_skipped: number of writes that were skipped because another was in flight.

    Raises:
        StorageIOError: the first write, which the constructor makes, failed; or listening on the port
            failed.
        PluginError: the format requires a package that is not installed.
        InvalidArgumentError: `every_seconds` is not positive, the format is unknown, or `path` is a URL.
    """

    def __init__(
        self,
        container: StepContainer,
        path: str | os.PathLike[str] | None = None,
        *,
        every_seconds: float = 10.0,
        file_format: MetricsFormat | str = MetricsFormat.JSONL,
        port: int | None = None,
        host: str = "127.0.0.1",
        access: MetricsAccess | None = None,
        more: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        if not every_seconds > 0:
            raise InvalidArgumentError(
                f"metrics: every_seconds: found {every_seconds}, expected a number above 0",
                every_seconds=every_seconds,
            )
        try:
            chosen = MetricsFormat(file_format)
        except ValueError as error:
            names = ", ".join(each.value for each in MetricsFormat)
            raise InvalidArgumentError(
                f"metrics: found the format {file_format!r}, expected one of {names}",
                format=file_format,
            ) from error
        if path is not None and "://" in os.fspath(path):
            raise InvalidArgumentError(
                f"metrics: found the URL {os.fspath(path)}, expected the path of a local file; choose "
                "such a path",
                path=path,
            )
        self._container = container
        self._every_seconds = every_seconds
        self._more = more
        self._task: Task[Any] | None = None
        self._is_closed = False
        self.num_skipped = 0
        self.path = None if path is None else _add_rank_to_path(os.fspath(path), container)
        self.port: int | None = None
        self._page: PrometheusPage | None = None
        self._outputs: list[JsonLines | PrometheusFile | PrometheusPage] = []
        if self.path is not None:
            is_text = chosen is MetricsFormat.PROMETHEUS
            self._outputs.append(PrometheusFile(self.path) if is_text else JsonLines(self.path))
        if port is not None:
            own = port + container.collective.rank if port else 0
            self._page = PrometheusPage(host, own, access)
            self.port = self._page.port
            self._outputs.append(self._page)
        if not self._outputs:
            return
        try:
            self._write_now(counts_all=False)
        except BaseException:
            self._close_page()
            raise
        self._due = time.monotonic() + every_seconds
        container.after_step.append(self._on_step)

    def close(self) -> None:
        """Writes the final counters after the event loop has finished its work. Further calls do
        nothing.

        Raises:
            StorageIOError: the file cannot be written.
            DeadlineError: the event loop did not finish in time.
            ClosedError: the container was closed before.
        """
        if self._is_closed:
            return
        self._stop()
        if not self._outputs:
            return
        try:
            self._close_open()
        finally:
            self._close_page()

    def _close_open(self) -> None:
        try:
            self._container.check_open()
        except ClosedError as error:
            raise ClosedError(
                f"writing the last {self._name} failed, because their container is closed; close the "
                "writer before the container",
                path=self.path,
            ) from error
        try:
            # Write-backs and saves still change counters.
            self._container.events.drain()
        except DeadlineError as error:
            _log.warning(
                "the last %s do not include saves and write-backs that are still running: %s",
                self._name, error,
            )  # fmt: skip
        self._write_now(counts_all=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif not self._is_closed:
            self._close_after(error)

    def _close_after(self, error: BaseException | None) -> None:
        """Writes the last counters without queries to storages. Errors are logged, not raised."""
        self._stop()
        if not self._outputs:
            return
        try:
            self._write_now(counts_all=False)
        except Exception as failure:
            _log.error("after %r, writing the last metrics failed: %s", error, failure)
        finally:
            self._close_page()

    def _close_page(self) -> None:
        if self._page is not None:
            self._page.close()
            self._page = None

    def _stop(self) -> None:
        self._is_closed = True
        if self._on_step in self._container.after_step:
            self._container.after_step.remove(self._on_step)

    # -- on the thread that drives steps --------------------------------------

    def _on_step(self) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._every_seconds
        if self._task is not None and not self._task.done():
            self.num_skipped += 1
            return
        try:
            metrics = self._read(counts_all=False)
        except Exception as error:
            # The step is complete, so the error is raised by the next one.
            work = partial(_raise, error)
        else:
            work = partial(self._write, metrics)
        try:
            self._task = self._container.events.submit(work, name=self._name, timeout=0.0)
        except (DeadlineError, ClosedError):
            # The event loop is busy or stopped. A step does not wait for metrics.
            self.num_skipped += 1

    def _write_now(self, *, counts_all: bool) -> None:
        """Writes on the event loop after its pending writes, and waits for the result."""
        seconds = self._container.events.deadline_seconds
        if self._task is not None:
            self._wait_for(self._task, seconds)
        metrics = self._read(counts_all=counts_all)
        work = partial(self._write, metrics)
        task = self._container.events.submit(work, name=self._name, report_failure=False)
        task.result(seconds)

    def _wait_for(self, task: Task[Any], seconds: float) -> None:
        try:
            task.result(seconds)
        except Exception as error:
            if not task.done():
                raise
            _log.info(
                "an earlier write of %s failed, and its error is raised separately: %s",
                self._name, error,
            )  # fmt: skip

    @property
    def _name(self) -> str:
        return f"metrics to {f'port {self.port}' if self.path is None else self.path}"

    def _read(self, *, counts_all: bool) -> dict[str, Any]:
        found = read_metrics(self._container, counts_all=counts_all)
        more = {} if self._more is None else self._more()
        return {**found, **more, "lines": {"num_skipped": self.num_skipped}}

    # -- on the event loop ------------------------------------------------------

    def _write(self, metrics: Mapping[str, Any]) -> None:
        try:
            for each in self._outputs:
                each.write(metrics)
        except OSError as error:
            raise StorageIOError(
                f"writing metrics to {self.path} failed: {error}; free space on the disk, or choose "
                "another file",
                path=self.path,
            ) from error


def _raise(error: Exception) -> None:
    raise error


def _add_rank_to_path(path: str, container: StepContainer) -> Path | None:
    rank, world_size = container.collective.rank, container.collective.world_size
    if rank > 0 and "{rank}" not in path:
        return None
    return Path(path.replace("{rank}", str(rank)).replace("{world_size}", str(world_size)))
