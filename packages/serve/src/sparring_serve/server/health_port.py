"""`HealthPort`: health checks of a server in plain text, for probes that cannot use TLS."""

from __future__ import annotations

from dataclasses import replace

import grpc

from sparring.errors import StorageIOError
from sparring_serve.server.call_lane import CallLane
from sparring_serve.server.grpc_methods import Methods, make_probe_handler
from sparring_serve.transport_options import CHANNEL_OPTIONS, server_options

__all__ = ["HealthPort"]

_THREADS = 2
_MAX_CALLS = 16


class HealthPort:
    """Answers only health checks, on a separate port, from `start` until `close`.

    The gRPC probes of Kubernetes do not support TLS.

    Args:
        host: Host to listen on.
        port: Port to listen on; 0 selects a free port.

    Raises:
        StorageIOError: The server cannot listen on the port.
    """

    def __init__(self, host: str, port: int) -> None:
        self._lane = CallLane("sparring-serve-health", _THREADS, _MAX_CALLS)
        self._grpc = grpc.server(
            self._lane.threads,
            options=[*CHANNEL_OPTIONS, *server_options(0), ("grpc.so_reuseport", 0)],
        )
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port = self._grpc.add_insecure_port(address)
        except RuntimeError as error:
            raise StorageIOError(
                f"cannot listen on {address} ({error}); stop the process that uses the port, or set "
                "server.health_port"
            ) from None

    def start(self, methods: Methods) -> None:
        """Starts to answer.

        Args:
            methods: Methods of the server; probes of the main port cannot occupy the threads of this
                port.
        """
        handler = make_probe_handler(replace(methods, probes=self._lane))
        self._grpc.add_generic_rpc_handlers((handler,))
        self._grpc.start()

    def close(self) -> None:
        """Closes the port."""
        self._grpc.stop(None).wait()
        self._lane.close()
