"""Exposes metrics to Prometheus, over HTTP or in a file, with prometheus-client."""

from __future__ import annotations

import hmac
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from sparring.errors import ConfigError, PluginError, StorageIOError
from sparring_cli.metrics.registry import MetricFamily, MetricRegistry

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

__all__ = ["MetricsAccess", "MetricsExporter", "write_metrics_file"]

_CONNECTION_SECONDS = 10.0
"""Maximum duration of a connection."""

_log = logging.getLogger(__name__)

_Value = TypeVar("_Value")
_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class MetricsAccess:
    """Who may read metrics over HTTP. The files are read again for each connection; if this fails, the
    previous token or certificate remains in use, and a warning is logged once.

    Args:
        token_file: File whose first line is the token that a request must have
            (``Authorization: Bearer …``); None accepts all requests.
        certificate_file: Certificate of the exporter in PEM format, for TLS; None: plain text.
        key_file: Key of the certificate.

    Examples:
        >>> from sparring_cli import MetricsAccess
        >>> MetricsAccess().certificate_file is None
        True
    """

    token_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    def check(self, option: str) -> None:
        """Reads the files once.

        Raises:
            ConfigError: A file cannot be read or is invalid.
        """
        try:
            if self.token_file is not None:
                self.token()
            if self.certificate_file is not None:
                self.tls()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{option}: the file of its token or certificate is invalid: {error}; correct the file"
            ) from error

    def is_readable_by_others(self, host: str) -> bool:
        """Returns whether the token would be sent in plain text over a network.

        Args:
            host: Address of the exporter.
        """
        is_local = host in ("localhost", "::1") or host.startswith("127.")
        return self.token_file is not None and self.certificate_file is None and not is_local

    def token(self) -> bytes:
        """Returns the token.

        Raises:
            OSError: The file cannot be read.
            ValueError: Its first line is empty.
        """
        assert self.token_file is not None
        found = self.token_file.read_bytes().partition(b"\n")[0].strip()
        if not found:
            raise ValueError(f"{self.token_file}: the first line must be the token, found none")
        return found

    def tls(self) -> ssl.SSLContext:
        """Returns a context with the certificate.

        Raises:
            OSError: A file cannot be read, or is no certificate or key.
        """
        assert self.certificate_file is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate_file, self.key_file)
        return context

    def protect(self, application: _Application) -> _Application:
        """Returns an application that rejects requests without the token with status 401."""
        if self.token_file is None:
            return application

        token = _Latest(self.token)

        def checked(request: dict[str, Any], begin: Callable[..., Any]) -> Iterable[bytes]:
            expected = b"Bearer " + token()
            given = request.get("HTTP_AUTHORIZATION", "").encode("latin-1", "replace")
            if hmac.compare_digest(given, expected):
                return application(request, begin)
            begin(
                "401 Unauthorized",
                [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")],
            )
            return [b"send the token of this server: Authorization: Bearer ...\n"]

        return checked


class _Latest(Generic[_Value]):
    """Calls a function that reads files, and returns the previous result if it fails."""

    def __init__(self, read: Callable[[], _Value]) -> None:
        self._read = read
        self._result = read()
        self._is_failing = False

    def __call__(self) -> _Value:
        try:
            self._result = self._read()
            self._is_failing = False
        except (OSError, ValueError) as error:
            if not self._is_failing:
                _log.warning("metrics: %s; the previous token or certificate remains in use", error)
            self._is_failing = True
        return self._result


class MetricsExporter:
    """Answers ``GET /metrics`` on a separate port with separate threads.

    Args:
        registry: Metrics, read at each request.
        host: Address to listen on.
        port: Port to listen on; 0 selects a free port.
        option: Name of the option that specifies the port, for error messages.
        access: Token and certificate; None: plain text for everyone.

    Raises:
        ConfigError: A file of `access` cannot be read or is invalid.
        PluginError: prometheus-client is not installed.
        StorageIOError: The exporter cannot listen on the port.
    """

    def __init__(
        self,
        registry: MetricRegistry,
        host: str,
        port: int,
        option: str,
        access: MetricsAccess | None = None,
    ) -> None:
        access = access or MetricsAccess()
        collectors = _collectors(registry, option)
        access.check(option)
        from prometheus_client import make_wsgi_app

        application = access.protect(make_wsgi_app(collectors))
        try:
            self._server = make_server(host, port, application, _server_class(host), _TimedHandler)
            if access.certificate_file is not None:
                self._server.tls = _Latest(access.tls)
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
    # Newer versions of Python would let a second process listen on the same port.
    allow_reuse_port = False
    tls: Callable[[], ssl.SSLContext] | None = None
    """Returns the context of a new connection; None: plain text."""

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accepts a connection. The handshake is made by the thread of the connection."""
        connection, address = super().get_request()
        if self.tls is not None:
            try:
                connection = self.tls().wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
            except OSError:  # The caller of this method continues with the next connection.
                connection.close()
                raise
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a failed handshake, and a client that disconnected."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


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
