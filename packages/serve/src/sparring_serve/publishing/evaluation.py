"""Evaluates a model with quantized rows before they are published."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import sparring_packed
from sparring import Snapshot
from sparring.errors import InvalidArgumentError, SnapshotError
from sparring_serve import hookspecs
from sparring_serve.hookspecs import EvaluatorDescriptor, MetricValue

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["EvaluationCheck", "MetricLossError", "EvaluationReport"]

_OPTIONS = sparring_packed.WriteOptions(filter_rate=None)


class MetricLossError(SnapshotError):
    """Quantization makes a metric worse by more than allowed; nothing was published."""


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """Cost of quantization.

    Args:
        metric: Name of the metric.
        before: Value with the trained rows.
        after: Value with the served rows.
        loss: How much worse `after` is; negative if it is better.
        bytes_before: Size of data files with the trained rows.
        bytes_after: Size of data files with the served rows.
    """

    metric: str
    before: float
    after: float
    loss: float
    bytes_before: int
    bytes_after: int


class EvaluationCheck:
    """Evaluates a run's model with the rows of a snapshot, before and after quantization.

    Args:
        config: Configuration of the run, with the model and the test samples.
        max_loss: Maximum loss of the metric; None allows any loss.
        plugin_manager: Plugin manager that finds the evaluator.

    Raises:
        InvalidArgumentError: `max_loss` is not finite.
        PluginError: There is no evaluator, because sparring-train is not installed.
    """

    def __init__(self, config: str, max_loss: float | None, plugin_manager: PluginManager) -> None:
        if max_loss is not None and not math.isfinite(max_loss):
            raise InvalidArgumentError(
                f"publish: --max-metric-loss must be a finite number, found {max_loss}"
            )
        plugin_manager.extend(hookspecs, {"evaluators": EvaluatorDescriptor})
        self._evaluator = plugin_manager.find("evaluators", "train", EvaluatorDescriptor)
        self._config, self._max_loss, self._manager = config, max_loss, plugin_manager
        self._measured: tuple[str, EvaluationReport] | None = None

    def check(self, snapshot: Snapshot, quantize: Mapping[str, str]) -> EvaluationReport:
        """Measures a snapshot. Repeated calls for the same snapshot return the first result.

        Both versions of the rows are written to the folder for temporary files, and removed.

        Raises:
            MetricLossError: The loss exceeds the maximum or is NaN.
            SparringError: The configuration, its data or the snapshot cannot be read.
        """
        if self._measured is None or self._measured[0] != snapshot.manifest_hash:
            self._measured = snapshot.manifest_hash, self._measure(snapshot, quantize)
        report = self._measured[1]
        if self._max_loss is not None and not report.loss <= self._max_loss:
            chosen = ", ".join(f"{table}={dtype}" for table, dtype in quantize.items())
            raise MetricLossError(
                f"snapshot {snapshot.url} is not published: with {chosen}, {report.metric} changes from "
                f"{report.before:.6f} to {report.after:.6f}, a loss of {report.loss:.6f}, above "
                f"--max-metric-loss {self._max_loss}; use more bits, or increase --max-metric-loss",
                url=snapshot.url,
            )
        return report

    def _measure(self, snapshot: Snapshot, quantize: Mapping[str, str]) -> EvaluationReport:
        # Serving snapshots do not support float64 and use float32 instead.
        plain = {name: "fp32" for name, each in snapshot.tables.items() if each.dtype == "float64"}
        before, bytes_before = self._quality(snapshot, plain)
        chosen = {**plain, **quantize}
        after, bytes_after = (
            (before, bytes_before) if chosen == plain else self._quality(snapshot, chosen)
        )
        return EvaluationReport(
            before.metric,
            before.value,
            after.value,
            before.loss_of(after),
            bytes_before,
            bytes_after,
        )

    def _quality(self, snapshot: Snapshot, dtypes: Mapping[str, str]) -> tuple[MetricValue, int]:
        with TemporaryDirectory(prefix="sparring-quality-") as folder:
            url = f"{folder}/rows"
            written = sparring_packed.write(snapshot.url, url, quantize=dtypes, options=_OPTIONS)
            storage = {"backend": "packed", "path": url, "verify": "open"}
            quality = self._evaluator.quality(self._config, snapshot.url, storage, self._manager)
            return quality, sum(written.size_bytes.values())
