"""Metrics and trace of a run, written if configured."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparring import StepContainer
from sparring.adapter import Coordinator, Trace
from sparring.errors import SparringError
from sparring_cli import MetricsAccess, tracer
from sparring_train.config.run import ReportConfig
from sparring_train.config.sections.metrics import MetricsConfig
from sparring_train.metrics_files.writer import MetricsWriter
from sparring_train.report.step_times import StepTimes
from sparring_train.report.step_traces import StepTraces

__all__ = ["metrics_output", "trace_output"]

_log = logging.getLogger(__name__)


@contextmanager
def metrics_output(
    container: StepContainer,
    chosen: MetricsConfig,
    more: Callable[[], Mapping[str, Any]] | None = None,
) -> Iterator[None]:
    """Writes metrics during the block. All ranks enter it together.

    Args:
        container: contains the counters.
        chosen: the section of the configuration.
        more: see `MetricsWriter`.

    Raises:
        StorageIOError, PluginError: see `MetricsWriter`; raised if this or another rank fails.
    """
    if chosen.path is None and chosen.port is None:
        yield
        return
    access = MetricsAccess(
        *(
            None if each is None else Path(each)
            for each in (chosen.token_file, chosen.certificate_file, chosen.key_file)
        )
    )
    if access.is_readable_by_others(chosen.host):
        _log.warning(
            "the token of metrics.token_file is sent in plain text to %s:%d; set "
            "metrics.certificate_file and metrics.key_file, or use only a network that is trusted",
            chosen.host,
            chosen.port,
        )
    writer: MetricsWriter | None = None
    refusal: SparringError | None = None
    try:
        writer = MetricsWriter(
            container,
            chosen.path,
            every_seconds=chosen.every_seconds,
            file_format=chosen.format,
            port=chosen.port,
            host=chosen.host,
            access=access,
            more=more,
        )
    except SparringError as error:
        refusal = error
    Coordinator(container.collective, "metrics of this run").agree(refusal)
    assert writer is not None
    with writer:
        yield


@contextmanager
def trace_output(
    container: StepContainer, config: ReportConfig, metrics: MetricsConfig
) -> Iterator[None]:
    """Measures times for the report, for metrics and for OpenTelemetry, and writes a trace of all ranks
    if the block succeeds."""
    path, rank = config.trace_path, container.collective.rank
    has_metrics = metrics.port is not None or metrics.path is not None
    if (found := tracer()) is not None:
        traces = StepTraces(rank, found, keeps_spans=path is not None)
        container.trace = traces
        container.after_step.append(lambda: traces.end_step(container.counters.steps))
    elif has_metrics or (config.path is not None and rank == 0):
        container.trace = StepTimes(rank, keeps_spans=path is not None)
    elif path is not None:
        container.trace = Trace(rank)
    yield
    if path is not None:
        assert container.trace is not None
        container.quiesce()
        container.trace.write_together(path, container.collective)
