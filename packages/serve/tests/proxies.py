"""A TCP proxy before a server, which a test resets or stops."""

from __future__ import annotations

import socket
import struct
import threading

__all__ = ["Proxy"]


class Proxy:
    """Forwards connections to a port of this machine.

    Args:
        port: of the server.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._runs = threading.Event()
        self._runs.set()
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._num_resets = 0
        self.num_connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def hang(self) -> None:
        """Forwards nothing until `resume`; connections stay, and new ones are accepted."""
        self._runs.clear()

    def resume(self) -> None:
        self._runs.set()

    def reset_answers(self, count: int) -> None:
        """Resets the connection in place of each of the next answers, which the client never gets."""
        with self._lock:
            self._num_resets = count

    def close(self) -> None:
        self.resume()
        self._listener.close()
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _reset(pair)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            server = socket.create_connection(("127.0.0.1", self._port))
            self.num_connections += 1
            pair = client, server
            with self._lock:
                self._pairs.append(pair)
            threading.Thread(target=self._forward, args=(pair, True), daemon=True).start()
            threading.Thread(target=self._forward, args=(pair, False), daemon=True).start()

    def _forward(self, pair: tuple[socket.socket, socket.socket], to_server: bool) -> None:
        source, target = pair if to_server else pair[::-1]
        try:
            while content := source.recv(1 << 16):
                self._runs.wait()
                if not to_server and self._takes_reset(content):
                    break
                target.sendall(content)
        except OSError:
            pass  # one side has closed its socket, and the other is closed below
        _reset(pair)

    def _takes_reset(self, content: bytes) -> bool:
        # A frame of HEADERS is the beginning of an answer; others are settings, pings and window updates.
        is_answer = any(kind == 1 for kind in _frames(content))
        with self._lock:
            takes = is_answer and self._num_resets > 0
            self._num_resets -= takes
        return takes


def _frames(content: bytes) -> list[int]:
    """Types of the HTTP/2 frames that begin in `content`, which begins with one."""
    kinds, at = [], 0
    while at + 9 <= len(content):
        kinds.append(content[at + 3])
        at += 9 + int.from_bytes(content[at : at + 3], "big")
    return kinds


def _reset(pair: tuple[socket.socket, socket.socket]) -> None:
    for each in pair:
        try:
            # A closed socket sends RST rather than FIN.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # it is closed already
        finally:
            each.close()
