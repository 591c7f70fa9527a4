"""One ``redis-server`` process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from sparring.contracts import Closable
from sparring_redis.connections.connection import Access, RedisConnection
from sparring_redis.connections.deadline import Deadline
from sparring_redis.connections.location import Address

__all__ = ["RedisServer", "free_port", "redis_server_missing"]

_START_SECONDS = 15.0
_MAX_ATTEMPTS = 5


def redis_server_missing() -> str | None:
    """Returns why no server can be started here and how to fix it, or None if one can."""
    if shutil.which("redis-server") is None:
        return "needs redis-server: apt-get install -y redis-server"
    return None


def free_port() -> int:
    """Returns a free port below 55,536, because a cluster node also uses the port 10,000 above it.

    That port may be in use, and this one may be taken before the server binds it, so the caller must
    retry.
    """
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port < 55_536:
            return port
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port - 10_000))
                return port - 10_000
            except OSError:
                continue


class RedisServer(Closable):
    """A server on a free port of loopback. A context manager; `close` also removes its folder.

    Args:
        settings: additional settings of ``redis.conf``.
        access: credentials that this class uses, if the settings require them; they must permit
            ``INFO``.
        arguments: additional command-line arguments, for example ``--sentinel``.
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        access: Access | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.access = access or Access()
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        for num_left in reversed(range(_MAX_ATTEMPTS)):
            self.folder = Path(tempfile.mkdtemp(prefix="sparring-redis-"))
            try:
                self._prepare(settings or {})
                self.start()
                return
            except RuntimeError as error:
                self.close()
                # Another process took the port after it was found to be free.
                if not num_left or "Address already in use" not in str(error):
                    raise
            except BaseException:
                self.close()
                raise

    def _prepare(self, settings: Mapping[str, Any]) -> None:
        """Chooses a port and writes the settings to the folder."""
        self.port = free_port()
        chosen: dict[str, Any] = {
            "bind": "127.0.0.1",
            "dir": self.folder,
            "save": '""',
            "logfile": self.folder / "redis.log",
            "unixsocket": self.folder / "redis.sock",
        }
        chosen["tls-port" if self.access.is_encrypted else "port"] = self.port
        if self.access.is_encrypted:
            chosen["port"] = 0
        if "--sentinel" in self._arguments:
            del chosen["save"]
        chosen.update(settings)
        self._file = self.folder / "redis.conf"
        self._file.write_text("".join(f"{name} {value}\n" for name, value in chosen.items()))

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    @property
    def url(self) -> str:
        return f"redis{'s' if self.access.is_encrypted else ''}://127.0.0.1:{self.port}"

    @property
    def unix_socket(self) -> Path:
        return self.folder / "redis.sock"

    def start(self) -> None:
        """Starts the process and waits until it replies.

        Raises:
            RuntimeError: it ended, or did not reply in time.
        """
        command = ["redis-server", str(self._file), *self._arguments]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            # With a short timeout, because another process may have the port and not reply.
            with contextlib.suppress(RedisError, OSError):
                self.ask("PING", seconds=1.0)
                # The reply may come from another server on this port, so the process id is compared.
                if b"process_id:%d\r" % self._process.pid in self.ask(
                    "INFO", "server", seconds=1.0
                ):
                    return
            time.sleep(0.01)
        log = self.folder / "redis.log"
        text = log.read_text()[-1000:] if log.exists() else "no log"
        raise RuntimeError(f"redis-server on port {self.port} did not start: {text}")

    def ask(self, *words: Any, seconds: float = 5.0) -> Any:
        """Runs one command over a new connection."""
        link = RedisConnection(self.address, self.access, Deadline(seconds))
        try:
            return link.ask(*words)
        finally:
            link.close()

    def signal(self, number: signal.Signals) -> None:
        """Sends SIGSTOP, SIGCONT, SIGKILL, … to this process."""
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kills the process, like a crash."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Stops the process and removes its folder. A second call does nothing."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
