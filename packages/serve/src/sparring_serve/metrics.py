"""Counters of a service and of a client; an HTTP exporter in Prometheus's format.

Names are `sparring_serving_` and the names here; counters end in ``_total``.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sparring.errors import PluginError, StorageIOError

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["HELP", "MetricsExporter", "ServingMetrics"]

HELP = {
    "pulls_total": "Calls for rows, by table and status of gRPC",
    "pull_seconds": "Time of a call in the service, without its transport",
    "ids_total": "Ids that were asked for",
    "found_total": "Ids that had a row",
    "version_step": "Step of training of the newest version",
    "staleness_seconds": "Time since the newest version was published",
    "refreshes_total": "Looks for a newer version: taken, unchanged or refused",
    "refresh_seconds": "Time that the last newer version took from being seen to being served",
    "warm_up_seconds": "Time for which the newest version was read before it was served",
    "warm_up_ids": "Ids that were looked up in that time",
    "warm_up_bytes": "Bytes of directories that were read in that time",
    "layers": "Deltas over a full version, and that one",
    "mapped_bytes": "Bytes of mapped files of the newest version",
    "bytes_in_flight": "Bytes of requests and answers of calls under way",
    "rejected_total": "Calls that were refused, by reason",
    "degraded_rows_total": "Rows of a client that no replica answered, by reason and what was given",
    "pushed_steps": "Pushes that this shard has applied",
    "pushes_waiting": "Pushes that wait in the queue",
    "push_bytes_waiting": "Bytes of pushes that wait in the queue",
    "rows_updated": "Rows that pushes have changed, since the server began or loaded",
    "gradients_not_admitted": "Gradients of keys that had no row and were not admitted",
    "failovers_total": "Calls of a client that went to another replica",
}
"""Name → meaning of all metrics."""

_BOUNDS = tuple(base * 10.0**power for power in range(-5, 1) for base in (1, 2.5, 5))
"""Upper bounds of the buckets of seconds: 10 µs to 5 s."""

_Labels = tuple[tuple[str, str], ...]


class ServingMetrics:
    """Counters. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: Counter[tuple[str, _Labels]] = Counter()
        self._pulls: Counter[tuple[str, str]] = Counter()
        self._num_ids = self._num_found = 0
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._pull_seconds = 0.0
        self._gauges: list[Callable[[], Mapping[str, float]]] = []

    def note_pull(
        self, tables: Iterable[str], code: str, ids: tuple[int, int], seconds: float
    ) -> None:
        """Counts one call.

        Args:
            tables: that it asked for, of those that there are.
            code: its status.
            ids: that it asked for, and how many of them had a row.
            seconds: that it took.
        """
        place = bisect_left(_BOUNDS, seconds)
        with self._lock:
            for table in tables:
                self._pulls[table, code] += 1
            self._num_ids += ids[0]
            self._num_found += ids[1]
            self._buckets[place] += 1
            self._pull_seconds += seconds

    def count_rejected(self, reason: str) -> None:
        self._add("rejected_total", (("reason", reason),), 1)

    def count_refresh(self, result: str) -> None:
        """Counts a look for a newer version: `taken`, `unchanged` or `refused`."""
        self._add("refreshes_total", (("result", result),), 1)

    def count_degraded(self, num_rows: int, reason: str, given: str) -> None:
        """Counts rows that no replica answered, by the error and what was given: `failed`, `stale` …"""
        self._add("degraded_rows_total", (("reason", reason), ("given", given)), num_rows)

    def count_failover(self) -> None:
        self._add("failovers_total", (), 1)

    def add_gauges(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Asks `read` for gauges, by name, whenever metrics are read."""
        self._gauges.append(read)

    def value(self, name: str, **labels: str) -> float:
        """One number, 0 if nothing was counted; labels that are left out are summed over."""
        wanted = set(labels.items())
        found = self._counted()
        return sum(count for (each, has), count in found if each == name and wanted <= set(has))

    def _counted(self) -> list[tuple[tuple[str, _Labels], float]]:
        with self._lock:
            pulls = [
                (("pulls_total", (("table", table), ("code", code))), count)
                for (table, code), count in self._pulls.items()
            ]
            ids = [(("ids_total", ()), self._num_ids), (("found_total", ()), self._num_found)]
            return sorted([*self._counters.items(), *pulls, *ids])

    def gauges(self) -> dict[str, float]:
        """All gauges now."""
        return {name: value for read in self._gauges for name, value in read().items()}

    def families(self) -> Iterator[Metric]:
        """All metrics as prometheus-client's."""
        from prometheus_client.metrics_core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        counters = self._counted()
        with self._lock:
            buckets, seconds = list(self._buckets), self._pull_seconds
        grouped: dict[str, list[tuple[_Labels, float]]] = {}
        for (name, labels), count in counters:
            grouped.setdefault(name, []).append((labels, count))
        for name, samples in grouped.items():
            names = [label for label, _ in samples[0][0]]
            family = CounterMetricFamily(f"sparring_serving_{name}", HELP[name], labels=names)
            for has, value in samples:
                family.add_metric([of_label for _, of_label in has], value)
            yield family
        cumulated, total = [], 0
        for bound, count in zip((*map(str, _BOUNDS), "+Inf"), buckets, strict=True):
            total += count
            cumulated.append((bound, total))
        yield HistogramMetricFamily(
            "sparring_serving_pull_seconds",
            HELP["pull_seconds"],
            buckets=cumulated,
            sum_value=seconds,
        )
        for name, value in self.gauges().items():
            yield GaugeMetricFamily(f"sparring_serving_{name}", HELP[name], value=value)

    def _add(self, name: str, labels: _Labels, count: int) -> None:
        with self._lock:
            self._counters[name, labels] += count


class MetricsExporter:
    """Answers ``GET /metrics`` on a port of its own, on threads of its own.

    Args:
        metrics: that are read.
        host: the address to listen on.
        port: 0 takes a free one.

    Raises:
        PluginError: prometheus-client is not installed.
        StorageIOError: the port cannot be listened on.
    """

    def __init__(self, metrics: ServingMetrics, host: str, port: int) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
            from prometheus_client.registry import Collector
        except ImportError as error:
            raise PluginError(
                "metrics over HTTP need prometheus-client, which is not installed; run: pip install "
                "'sparring-serve[metrics]', or leave server.metrics_port out"
            ) from error

        class Measured(Collector):
            def collect(self) -> Iterator[Metric]:
                return metrics.families()

        registry = CollectorRegistry(auto_describe=False)
        registry.register(Measured())
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise StorageIOError(
                f"metrics: cannot listen on {host}:{port} ({error.strerror}); choose another "
                "server.metrics_port"
            ) from error
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stops listening."""
        server: Any = self._server
        server.shutdown()
        server.server_close()
        self._thread.join()
