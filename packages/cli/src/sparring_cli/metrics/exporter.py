"""Exposes metrics to Prometheus, over HTTP or in a file, with prometheus-client."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from sparring.errors import PluginError, StorageIOError
from sparring_cli.metrics.registry import MetricFamily, MetricRegistry

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

__all__ = ["MetricsExporter", "write_metrics_file"]

_CONNECTION_SECONDS = 10.0
"""Maximum duration of a connection."""


class MetricsExporter:
    """Answers ``GET /metrics`` on a separate port with separate threads.

    Args:
        registry: Metrics, read at each request.
        host: Address to listen on.
        port: Port to listen on; 0 selects a free port.
        option: Name of the option that specifies the port, for error messages.

    Raises:
        PluginError: prometheus-client is not installed.
        StorageIOError: The exporter cannot listen on the port.
    """

    def __init__(self, registry: MetricRegistry, host: str, port: int, option: str) -> None:
        collectors = _collectors(registry, option)
        from prometheus_client import make_wsgi_app

        try:
            self._server = make_server(
                host, port, make_wsgi_app(collectors), _server_class(host), _TimedHandler
            )
        except OSError as error:
            raise StorageIOError(
                f"metrics: cannot listen on {host}:{port} ({error.strerror}); choose another {option}"
            ) from error
        self.port: int = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="sparring-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops listening. Further calls do nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _ServerOfIPv6(_Server):
    address_family = socket.AF_INET6


def _server_class(host: str) -> type[_Server]:
    return _ServerOfIPv6 if ":" in host else _Server


class _TimedHandler(WSGIRequestHandler):
    """Closes a connection after `_CONNECTION_SECONDS`, because an idle one would occupy its thread
    forever."""

    def setup(self) -> None:
        super().setup()
        self._timer = threading.Timer(_CONNECTION_SECONDS, self._cut)
        self._timer.daemon = True
        self._timer.start()

    def finish(self) -> None:
        self._timer.cancel()
        with suppress(OSError):  # the connection was cut
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - name of the base class
        """Logs nothing."""

    def _cut(self) -> None:
        with suppress(OSError):  # the client has already closed it
            self.connection.shutdown(socket.SHUT_RDWR)


def write_metrics_file(registry: MetricRegistry, path: Path, option: str) -> None:
    """Replaces a file by the current metrics, for the textfile collector of node_exporter.

    Raises:
        PluginError: prometheus-client is not installed.
        OSError: The file cannot be written; the previous one remains.
    """
    collectors = _collectors(registry, option)
    from prometheus_client import write_to_textfile

    write_to_textfile(str(path), collectors)


def _collectors(registry: MetricRegistry, option: str) -> CollectorRegistry:
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.registry import Collector
    except ImportError as error:
        raise PluginError(
            f"{option} needs prometheus-client, which is not installed; run: pip install "
            f"'sparring[metrics]', or remove {option}"
        ) from error

    class Measured(Collector):
        def collect(self) -> Iterator[Metric]:
            return map(_family, registry.families())

    made = CollectorRegistry(auto_describe=False)
    made.register(Measured())
    return made


def _family(family: MetricFamily) -> Metric:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    kinds = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    names = list(family.samples[0].labels) if family.samples else []
    made: Any = kinds[family.kind](family.name, family.meaning, labels=names)
    for sample in family.samples:
        labels = list(sample.labels.values())
        if sample.counts is None:
            made.add_metric(labels, sample.value)
        else:
            made.add_metric(labels, _cumulated(sample.counts), sample.value)
    return made  # type: ignore[no-any-return]


def _cumulated(counts: Any) -> list[tuple[str, float]]:
    total, found = 0, []
    for bound, count in counts.items():
        total += count
        found.append(("+Inf" if bound == float("inf") else str(bound), total))
    return found
