"""Metrics for Prometheus: a file for node_exporter's textfile collector, or a page over HTTP.

The number with name N in section S is ``sparring_S_N``, or ``sparring_S`` if N is S. Names of counters
end in ``_total``. Labels: rank, table, tier, backend, kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparring_cli import (
    MetricFamily,
    MetricRegistry,
    MetricsAccess,
    MetricSample,
    MetricsExporter,
    write_metrics_file,
)
from sparring_train.metrics_files.stream_families import stream_families

__all__ = ["PrometheusFile", "PrometheusPage"]

_GAUGES = {
    "rows",
    "memory_bytes",
    "most_undo_bytes",
    "num_outstanding",
    "age_seconds",
    "is_closed",
    "log_evidence",
    "loss",
    "memory_limit_bytes",
    "quality",
    "start_seconds",
}
"""Metrics that can decrease, or are not sums."""

_NOT_GAUGES = {("prefetches", "rows")}


class _Newest:
    """Contains the latest metrics, for a registry."""

    def __init__(self) -> None:
        self.registry = MetricRegistry()
        self.registry.add_source(lambda: _families(self.metrics))
        self.metrics: Mapping[str, Any] = {}


class PrometheusFile:
    """Replaces a file atomically, so that readers never see an incomplete one.

    Args:
        path: path of the file; its folder is created. The collector reads names that end in ``.prom``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest = _Newest()

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Replaces the metrics in the file.

        Raises:
            PluginError: prometheus-client is not installed.
            OSError: the file cannot be written; the previous one remains.
        """
        self._newest.metrics = metrics
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_metrics_file(self._newest.registry, self._path, "metrics.format=prometheus")


class PrometheusPage:
    """Serves the latest metrics to Prometheus.

    Args:
        host: address to listen on.
        port: 0 selects a free one.
        access: token and certificate; None: plain text for everyone.

    Raises:
        ConfigError: a file of `access` cannot be read or is invalid.
        PluginError: prometheus-client is not installed.
        StorageIOError: listening on the port failed.
    """

    def __init__(self, host: str, port: int, access: MetricsAccess | None = None) -> None:
        self._newest = _Newest()
        self._exporter = MetricsExporter(self._newest.registry, host, port, "metrics.port", access)
        self.port = self._exporter.port

    def write(self, metrics: Mapping[str, Any]) -> None:
        self._newest.metrics = metrics

    def close(self) -> None:
        """Stops listening."""
        self._exporter.close()


def _families(metrics: Mapping[str, Any]) -> Iterator[MetricFamily]:
    grouped: dict[tuple[str, str], list[MetricSample]] = {}
    for section, name, labels, value in _numbers(metrics) if metrics else ():
        grouped.setdefault((section, name), []).append(MetricSample(labels, value))
    for (section, name), samples in grouped.items():
        full = f"sparring_{section}" if name == section else f"sparring_{section}_{name}"
        meaning = f"{name} of {section}: see the reference of sparring's metrics"
        is_gauge = name in _GAUGES and (section, name) not in _NOT_GAUGES
        if is_gauge:
            yield MetricFamily(full, "gauge", meaning, samples)
        else:
            yield MetricFamily(f"{full}_total", "counter", meaning, samples)
    if metrics and "stream" in metrics:
        yield from stream_families(metrics["stream"], {"rank": str(metrics["rank"])})


def _numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, str], float]]:
    """Yields section, name, labels and value of each number."""
    rank = {"rank": str(metrics["rank"])}
    for section in (
        "steps",
        "saves",
        "prefetches",
        "exchange",
        "events",
        "process",
        "training",
        "lines",
        "publishing",
        "gate",
    ):
        for name, value in metrics.get(section, {}).items():
            if isinstance(value, Mapping):
                for kind, part in value.items():
                    yield section, name, {**rank, "kind": kind}, part
            else:
                yield section, name, rank, value
    for table, found in metrics["tables"].items():
        for name, value in found.items():
            if name != "tiers" and value is not None:
                yield "tables", name, {**rank, "table": table}, value
        for number, tier in enumerate(found["tiers"]):
            labels = {**rank, "table": table, "tier": str(number), "backend": tier["backend"]}
            for name, value in tier.items():
                if name != "backend" and value is not None:
                    yield "tiers", name, labels, value
