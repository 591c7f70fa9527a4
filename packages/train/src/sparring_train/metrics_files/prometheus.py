"""Metrics for Prometheus: in a file for the textfile collector of node_exporter, or over HTTP.

A number of section S and name N is ``sparring_S_N``, and ``sparring_S`` where both are one; counters
end in ``_total``. Labels say whose it is: rank, table, tier, backend, kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparring_cli import (
    MetricFamily,
    MetricRegistry,
    MetricSample,
    MetricsExporter,
    write_metrics_file,
)

__all__ = ["PrometheusFile", "PrometheusPage"]

_GAUGES = {"rows", "memory_bytes", "most_undo_bytes", "num_outstanding"}
"""Metrics that may fall, or are no sum."""

_NOT_GAUGES = {("prefetches", "rows")}


class _Newest:
    """Holds the numbers that were written last, and gives them to a registry."""

    def __init__(self) -> None:
        self.registry = MetricRegistry()
        self.registry.add_source(lambda: _families(self.metrics))
        self.metrics: Mapping[str, Any] = {}


class PrometheusFile:
    """Replaces a file, so that readers always see a whole one.

    Args:
        path: of the file; its folder is made. The collector reads names that end in ``.prom``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest = _Newest()

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Puts the metrics in place of those before them.

        Raises:
            PluginError: prometheus-client is not installed.
            OSError: the file cannot be written; the one before stays.
        """
        self._newest.metrics = metrics
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_metrics_file(self._newest.registry, self._path, "metrics.format=prometheus")


class PrometheusPage:
    """Answers Prometheus with the numbers that were written last.

    Args:
        host: the address to listen on.
        port: 0 takes a free one.

    Raises:
        PluginError: prometheus-client is not installed.
        StorageIOError: the port cannot be listened on.
    """

    def __init__(self, host: str, port: int) -> None:
        self._newest = _Newest()
        self._exporter = MetricsExporter(self._newest.registry, host, port, "metrics.port")
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
        meaning = f"{name} of {section}: see the reference of metrics of sparring"
        is_gauge = name in _GAUGES and (section, name) not in _NOT_GAUGES
        if is_gauge:
            yield MetricFamily(full, "gauge", meaning, samples)
        else:
            yield MetricFamily(f"{full}_total", "counter", meaning, samples)


def _numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, str], float]]:
    """Section, name, labels and value of each."""
    rank = {"rank": str(metrics["rank"])}
    for section in ("steps", "saves", "prefetches", "exchange", "events", "lines"):
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
