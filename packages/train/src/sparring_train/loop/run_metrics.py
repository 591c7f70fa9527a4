"""Metrics of a run, written during training if configured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sparring import StepContainer
from sparring.adapter import Coordinator
from sparring.errors import SparringError
from sparring_train.config.sections.metrics import MetricsConfig
from sparring_train.metrics_files.writer import MetricsWriter

__all__ = ["metrics_output"]


@contextmanager
def metrics_output(container: StepContainer, chosen: MetricsConfig) -> Iterator[None]:
    """Writes metrics during the block. All ranks enter it together.

    Raises:
        StorageIOError, PluginError: see `MetricsWriter`; raised if this or another rank fails.
    """
    if chosen.path is None and chosen.port is None:
        yield
        return
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
        )
    except SparringError as error:
        refusal = error
    Coordinator(container.collective, "metrics of this run").agree(refusal)
    assert writer is not None
    with writer:
        yield
