"""A proxy between client and Redis that loses, delays and truncates data."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass

from sparring.contracts import Closable

__all__ = ["Fault", "FaultProxy"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault of one connection.

    Args:
        cut_request_at: number of bytes of requests after which both sides are closed.
        cut_reply_at: number of bytes of replies after which both sides are closed.
        stall_reply_at: number of bytes of replies after which nothing is forwarded.
        trickle_seconds: time between single bytes of replies.
        delay_seconds: delay of requests.
    """

    cut_request_at: int | None = None
    cut_reply_at: int | None = None
    stall_reply_at: int | None = None
    trickle_seconds: float = 0.0
    delay_seconds: float = 0.0


class FaultProxy(Closable):
    """Listens on loopback and forwards everything to a Redis on loopback. A context manager.

    `arm` sets the fault of all open connections and of the next `num_connections` new ones. Later
    connections have no fault.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._fault = Fault()
        self._num_left = 0
        self._links: list[_Relay] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def num_armed(self) -> int:
        """Number of next connections that get the fault."""
        return self._num_left

    def arm(self, fault: Fault, num_connections: int = 0) -> None:
        """Sets a fault. For open connections, bytes are counted from this call."""
        with self._lock:
            self._fault, self._num_left = fault, num_connections
            for link in self._links:
                link.arm(fault)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target), 5.0)
            except OSError:
                client.close()
                continue
            link = _Relay(client, server)
            with self._lock:
                self._links = [each for each in self._links if not each.is_over]
                if self._num_left:
                    self._num_left -= 1
                    link.arm(self._fault)
                self._links.append(link)
            link.start()


class _Relay:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self._client, self._server = client, server
        for each in (client, server):
            each.settimeout(None)
        self._fault = Fault()
        self._passed = {"request": 0, "reply": 0}
        self.is_over = False

    def arm(self, fault: Fault) -> None:
        self._passed = {"request": 0, "reply": 0}
        self._fault = fault

    def start(self) -> None:
        for arguments in ((self._client, self._server, "request"),
                          (self._server, self._client, "reply")):  # fmt: skip
            threading.Thread(target=self._pass_on, args=arguments, daemon=True).start()

    def close(self) -> None:
        self.is_over = True
        for each in (self._client, self._server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _pass_on(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if not self._forward(data, target, way):
                    break
        self.close()

    def _forward(self, data: bytes, target: socket.socket, way: str) -> bool:
        """Forwards the bytes that the fault permits; returns False if the connection must be closed."""
        fault = self._fault
        is_request = way == "request"
        if is_request and fault.delay_seconds:
            time.sleep(fault.delay_seconds)
        cut = fault.cut_request_at if is_request else fault.cut_reply_at
        stall = None if is_request else fault.stall_reply_at
        most = min(limit for limit in (cut, stall, 1 << 62) if limit is not None)
        part = data[: max(0, most - self._passed[way])]
        self._passed[way] += len(data)
        if not is_request and fault.trickle_seconds:
            for i in range(len(part)):
                target.sendall(part[i : i + 1])
                time.sleep(fault.trickle_seconds)
        else:
            target.sendall(part)
        return cut is None or self._passed[way] < cut
