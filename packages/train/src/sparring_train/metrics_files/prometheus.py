"""Metrics in Prometheus's text format, for the textfile collector of node_exporter.

A number of section S and name N is ``sparring_S_N``, and ``sparring_S`` where both are one; counters
end in ``_total``. Labels say whose it is: rank, table, tier, backend, kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.errors import PluginError

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["PrometheusFile"]

_GAUGES = {"rows", "memory_bytes", "most_undo_bytes", "num_outstanding"}
"""Metrics that may fall, or are no sum."""

_NOT_GAUGES = {("prefetches", "rows")}


class PrometheusFile:
    """Replaces a file, so that readers always see a whole one.

    Args:
        path: of the file; its folder is made. The collector reads names that end in ``.prom``.

    Raises:
        PluginError: prometheus-client is not installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            import prometheus_client  # noqa: F401 - imported now, so that a run need not fail later
        except ImportError as error:
            raise PluginError(
                f"metrics for Prometheus at {path} need prometheus-client, which is not installed; "
                "run: pip install 'sparring[metrics]', or choose the format jsonl"
            ) from error
        self._path = path

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Puts the metrics in place of those before them.

        Raises:
            OSError: the file cannot be written; the one before stays.
        """
        from prometheus_client import CollectorRegistry, write_to_textfile
        from prometheus_client.registry import Collector

        class Measured(Collector):
            def collect(self) -> Iterator[Metric]:
                yield from _families(metrics)

        registry = CollectorRegistry(auto_describe=False)
        registry.register(Measured())
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_to_textfile(str(self._path), registry)


def _families(metrics: Mapping[str, Any]) -> Iterator[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    grouped: dict[tuple[str, str], list[tuple[dict[str, str], float]]] = {}
    for section, name, labels, value in _numbers(metrics):
        grouped.setdefault((section, name), []).append((labels, value))
    for (section, name), samples in grouped.items():
        full = f"sparring_{section}" if name == section else f"sparring_{section}_{name}"
        help_text = f"{name} of {section}: see the reference of metrics of sparring"
        label_names = list(samples[0][0])
        is_gauge = name in _GAUGES and (section, name) not in _NOT_GAUGES
        family = (GaugeMetricFamily if is_gauge else CounterMetricFamily)(
            full, help_text, labels=label_names
        )
        for labels, value in samples:
            family.add_metric(list(labels.values()), value)
        yield family


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
