"""Samples the requests that a server answered, and passes them to a process that writes them to files.

A server sends each sampled request as one message over a pair of connected sockets, without waiting. If
the buffer of the socket is full, or the writer has ended, the entry is dropped and counted. The native
server sends the same messages, so both servers have one writer: `sparring_serve.server.log_writer`.

A message contains the kind of the request (1 byte), the time in seconds since 1970 (8 bytes, float64,
little-endian), the length of the hash of the version (1 byte), the hash, and the request as it was
received.
"""

from __future__ import annotations

import importlib.util
import logging
import random
import socket
import struct
import subprocess
import sys
import time
from enum import IntEnum

from sparring.errors import PluginError, StorageIOError
from sparring_serve.config import LogConfig
from sparring_serve.metrics import ServingMetrics
from sparring_serve.wire.fields import Buffer

__all__ = [
    "HEAD",
    "MAX_REQUEST_ID",
    "RESERVED_NAMES",
    "LoggedKind",
    "RequestLog",
    "open_request_log",
    "start_writer",
]

HEAD = struct.Struct("<BdB")
"""Start of a message: kind, time, and length of the hash."""

MAX_REQUEST_ID = 256
"""Maximum number of characters of a request id, which is written in each row."""

RESERVED_NAMES = ("request_id", "served_time", "served_version")
"""Columns that the log adds."""

_log = logging.getLogger(__name__)

_END_SECONDS = 10.0
_BUFFER_BYTES = 4 << 20
"""Requested size of the socket's buffer. Linux limits it to `net.core.wmem_max`."""


class LoggedKind(IntEnum):
    """Kind of a logged request."""

    PULL = 1
    """A PullRequest of `lookup.proto`."""
    INFER = 2
    """A ModelInferRequest of the Open Inference Protocol."""


class RequestLog:
    """Sends sampled requests to the writer. All methods are thread-safe and never wait.

    Args:
        writer: Socket that takes messages.
        fraction: Share of the requests to log.
        metrics: Counts the entries.
        process: The process that writes them; `close` waits for its end.
    """

    def __init__(
        self,
        writer: socket.socket,
        fraction: float,
        metrics: ServingMetrics,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._writer, self._fraction, self._metrics = writer, fraction, metrics
        self._process = process

    def note(self, kind: LoggedKind, version: str, content: Buffer) -> None:
        """Logs a request, or drops it, unless it is not in the sample.

        Args:
            kind: Kind of the request.
            version: Hash of the version of the reply.
            content: The request as it was received.
        """
        if random.random() >= self._fraction:
            return
        name = version.encode()[:255]
        parts = [HEAD.pack(kind, time.time(), len(name)), name, content]
        try:
            self._writer.sendmsg(parts, (), socket.MSG_DONTWAIT)
        except OSError:  # the buffer is full, the request is too large, or the writer has ended
            self._metrics.count_logged("dropped")
        else:
            self._metrics.count_logged("queued")

    def close(self) -> None:
        """Ends the writer after it has written the queued entries, and waits for at most 10 s."""
        self._writer.close()
        if self._process is not None:
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                _log.warning("server.log: the last entries are not written yet")


def open_request_log(config: LogConfig, metrics: ServingMetrics) -> RequestLog | None:
    """Starts the log of a server; returns None if it is not configured.

    Args:
        config: The section ``server.log``.
        metrics: Counts the entries.

    Raises:
        PluginError, StorageIOError: As in `start_writer`.
    """
    if config.path is None:
        return None
    writer, process = start_writer(config)
    return RequestLog(writer, config.fraction, metrics, process)


def start_writer(config: LogConfig) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Starts the process that writes the log, and returns the socket that takes messages.

    The process ends when all copies of the socket are closed.

    Args:
        config: The section ``server.log``, with a path.

    Raises:
        PluginError: pyarrow is not installed.
        StorageIOError: The folder cannot be created.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise PluginError(
            "server.log: writing requires pyarrow, which is not installed; run: pip install "
            "'sparring-serve[log]', or remove server.log.path"
        )
    assert config.path is not None
    try:
        config.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageIOError(
            f"server.log.path: cannot create {config.path} ({error.strerror}); choose a folder that this "
            "user can write"
        ) from error
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        command = [sys.executable, "-m", "sparring_serve.server.log_writer"]
        command += [str(theirs.fileno()), str(config.path), str(config.max_bytes)]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
    return ours, process
