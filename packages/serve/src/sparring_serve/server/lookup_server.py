"""Server of one process of a lookup service. It listens on a port, answers calls, and drains when
it is closed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import grpc

from sparring.errors import StorageIOError
from sparring_cli import MetricsAccess, MetricsExporter, process_metrics, tracer
from sparring_serve.config import (
    ServerConfig,
    ServingConfig,
    TlsFiles,
    check_plain_text,
    is_loopback,
    split_address,
)
from sparring_serve.limits import Admission, Limits, Quotas
from sparring_serve.metrics import ServingMetrics
from sparring_serve.request_log import open_request_log
from sparring_serve.security import Tokens, WatchedFile
from sparring_serve.server.call_lane import CallLane
from sparring_serve.server.call_watch import CallWatch
from sparring_serve.server.certificate import read_expiry
from sparring_serve.server.grpc_methods import Changes, Methods, make_handler
from sparring_serve.server.health_port import HealthPort
from sparring_serve.server.reflection import add_reflection
from sparring_serve.server.refresher import Refresher
from sparring_serve.server.silent_calls import num_slow_calls
from sparring_serve.service import LookupService, ShardPosition
from sparring_serve.tables.contract import ServingTables
from sparring_serve.transport_options import CHANNEL_OPTIONS, server_options

__all__ = ["LookupServer", "check_access", "open_server"]

_log = logging.getLogger(__name__)

_PROBE_THREADS, _MAX_PROBES = 8, 32
_CALLS_PER_THREAD = 16
"""Maximum number of calls, per thread, that are answered or wait for a thread."""


def _do_nothing() -> None:
    """Default of `on_stuck`, for servers in programs that do not set another function."""


class LookupServer:
    """Serves tables on a port until `close`.

    Args:
        tables: Tables to serve; closed with the server.
        config: Configuration of the service.
        position: Shard of this server.
        address: ``host:port``; port 0 selects a free port.
        changes: Creates the handler of pushes, saves and loads; None: the tables are read-only.

    Raises:
        ConfigError: Plain text on a non-loopback address, or a TLS or token file is invalid.
        StorageIOError: The server cannot listen on the port.
        PluginError: Metrics, reflection, the log or traces are enabled, but their package is missing.
    """

    def __init__(
        self,
        tables: ServingTables,
        config: ServingConfig,
        position: ShardPosition,
        address: str,
        changes: Callable[[LookupService], Changes] | None = None,
    ) -> None:
        server = config.server
        host, _ = split_address(address)
        tokens, credentials = check_access(server, address)
        tracer()  # Otherwise a missing exporter would fail every call instead of the start.
        self.metrics = ServingMetrics()
        self.service = LookupService(
            tables,
            position,
            Limits(
                max_ids=server.max_ids,
                max_bytes=server.max_bytes,
                max_deadline_seconds=server.max_deadline_seconds,
                max_queries=server.max_queries,
                max_k=server.max_k,
            ),
            Admission(server.max_bytes_in_flight),
            self.metrics,
        )
        self.service.log = open_request_log(server.log, self.metrics)
        if server.has_quota:
            quota = server.quota
            self.service.quotas = Quotas(quota.calls_per_second, quota.ids_per_second, self.metrics)
        self.metrics.add_gauges(self._gauges)
        if tables.not_fresh and changes is None:
            self.metrics.count_refresh("refused")
        self.changes = None if changes is None else changes(self.service)
        self._expiry = _read_expiry(server.tls)
        self._drain_seconds = server.drain_seconds
        self._calls = CallLane(
            "sparring-serve",
            server.threads,
            _CALLS_PER_THREAD * server.threads,
            num_slow_calls(server.max_bytes_in_flight),
        )
        self._probes = CallLane("sparring-serve-probes", _PROBE_THREADS, _MAX_PROBES)
        self._rejections = ThreadPoolExecutor(1, "sparring-serve-rejections")
        self.on_stuck: Callable[[], None] = _do_nothing
        """Called once if calls occupy all threads long after their deadlines."""
        self.watch = CallWatch()
        longest_seconds = server.max_deadline_seconds
        if changes is not None and config.parameters is not None:
            longest_seconds = max(longest_seconds, config.parameters.save_seconds)
            if tokens is None and not is_loopback(host):
                _log.warning(
                    "this server has no server.token_file, so it accepts pushes, flushes, saves and "
                    "loads from loopback addresses only, and lookups from everywhere"
                )
        # The lanes limit the calls, because gRPC's limit would also reject health probes of a busy
        # server.
        self._grpc = grpc.server(
            self._calls.threads,
            options=[
                *CHANNEL_OPTIONS,
                *server_options(longest_seconds),
                ("grpc.so_reuseport", int(server.workers > 1)),
            ],
        )
        try:
            self.port = (
                self._grpc.add_insecure_port(address)
                if credentials is None
                else self._grpc.add_secure_port(address, credentials)
            )
        except RuntimeError as error:
            raise StorageIOError(
                f"cannot listen on {address} ({error}); stop the process that uses the port, or set "
                "server.address"
            ) from None
        self.address = f"{host}:{self.port}" if ":" not in host else f"[{host}]:{self.port}"
        if server.reflection:
            add_reflection(self._grpc)
        self.exporter = (
            None
            if server.metrics_port is None
            else MetricsExporter(
                self.metrics.registry,
                host,
                server.metrics_port,
                "server.metrics_port",
                _metrics_access(server),
            )
        )
        self.health_port = (
            None if server.health_port is None else HealthPort(host, server.health_port)
        )
        # This starts a thread, so all checks of the configuration come before it.
        self.refresher = Refresher(
            tables,
            self.metrics,
            # Tables of a backend follow its change notes and need no polling.
            None if server.pin is not None or config.tables else server.poll_seconds,
        )
        methods = Methods(
            self.service,
            self.refresher,
            tokens,
            self.changes,
            self.watch,
            self._calls,
            self._probes,
            self._rejections,
        )
        if self.health_port is not None:
            self.health_port.start(methods)
        self._grpc.add_generic_rpc_handlers((make_handler(methods),))
        self._is_closed = False
        self._grpc.start()
        self.watch.start(server.threads, lambda: self.on_stuck())  # noqa: PLW0108 - the attribute is set later

    def close(self) -> None:
        """Drains: rejects new calls, completes calls in progress, and closes the tables."""
        if self._is_closed:
            return
        self._is_closed = True
        self.service.is_draining = True
        self._grpc.stop(self._drain_seconds).wait()
        if self.changes is not None:
            self.changes.resign()
        self._calls.close()
        self._probes.close()
        self._rejections.shutdown(wait=True)
        self.watch.close()
        self.refresher.close()
        if self.changes is not None:
            self.changes.close()
        if self.service.log is not None:
            self.service.log.close()
        if self.exporter is not None:
            self.exporter.close()
        if self.health_port is not None:
            self.health_port.close()
        self.service.tables.close()

    def __enter__(self) -> LookupServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _gauges(self) -> Mapping[str, float]:
        newest = self.service.tables.versions()[0]
        expiry = {} if self._expiry is None else {"certificate_expires_seconds": self._expiry.value}
        return {
            **self.service.tables.gauges(),
            **process_metrics(),
            "version_step": float(newest.step),
            "staleness_seconds": max(0.0, self.service.clock() - newest.published),
            "refresh_seconds": self.refresher.last_seconds,
            "bytes_in_flight": float(self.service.admission.bytes_in_flight),
            "oldest_call_seconds": self.watch.oldest_seconds(),
            **expiry,
        }


def check_access(
    server: ServerConfig, address: str
) -> tuple[Tokens | None, grpc.ServerCredentials | None]:
    """Reads the files of tokens and TLS, and returns the tokens and credentials of a server, if any.

    Args:
        server: Settings of the server.
        address: ``host:port`` to listen on.

    Raises:
        ConfigError: Plain text on a non-loopback address, or a TLS or token file is invalid.
    """
    host, _ = split_address(address)
    is_encrypted = server.tls.certificate_file is not None
    check_plain_text(
        host, is_encrypted=is_encrypted, insecure=server.insecure, what="server address"
    )
    access = _metrics_access(server)
    if server.metrics_port is not None:
        access.check("server.metrics_port")
    if access.is_readable_by_others(host):
        _log.warning(
            "the token of server.metrics_token_file is sent in plain text to %s:%d; set "
            "server.metrics_tls, or use only a network that is trusted",
            host,
            server.metrics_port,
        )
    tokens = None if server.token_file is None else Tokens(server.token_file)
    return tokens, _credentials(server.tls) if is_encrypted else None


def _metrics_access(server: ServerConfig) -> MetricsAccess:
    tls = server.tls if server.metrics_tls else TlsFiles()
    return MetricsAccess(server.metrics_token_file, tls.certificate_file, tls.key_file)


def open_server(
    config: ServingConfig, *, shard: int = 0, address: str | None = None
) -> LookupServer:
    """Opens the serving snapshots of a configuration, or the backends of its tables, and serves them
    until `close`.

    Args:
        config: Configuration of the service.
        shard: Shard of this server, from 0.
        address: ``host:port``; port 0 selects a free port; None uses `server.address` or the address
            of the shard's first replica.

    Raises:
        SnapshotError: There is no serving snapshot, or it is damaged.
        ConfigError, StorageIOError: As in `LookupServer`.
    """
    position = ShardPosition(config.shard_map, shard)
    tables = _open_tables(config, position)
    try:
        listening = address or config.server.address or config.shards[shard][0]
        return LookupServer(tables, config, position, listening)
    except BaseException:
        tables.close()
        raise


def _open_tables(config: ServingConfig, position: ShardPosition) -> ServingTables:
    if config.tables:
        from sparring_serve.backend_tables import open_backend_tables

        return open_backend_tables(config.tables)
    from sparring_serve.tables.packed import open_packed_tables

    return open_packed_tables(config, position)


def _credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    """Returns credentials whose files are read again when they change; they apply to later
    connections."""
    assert tls.certificate_file is not None
    assert tls.key_file is not None
    certificate = WatchedFile(tls.certificate_file, bytes)
    key = WatchedFile(tls.key_file, bytes)
    authority = None if tls.ca_file is None else WatchedFile(tls.ca_file, bytes)

    def read() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(key.value, certificate.value)], None if authority is None else authority.value
        )

    return grpc.dynamic_ssl_server_credentials(
        read(), read, require_client_authentication=authority is not None
    )


def _read_expiry(tls: TlsFiles) -> WatchedFile[float] | None:
    """Returns the time at which the certificate expires; None without TLS."""
    if tls.certificate_file is None:
        return None
    return WatchedFile(tls.certificate_file, read_expiry)
