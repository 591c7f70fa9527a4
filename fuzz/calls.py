"""Fuzzes incomplete calls: silent, half-sent, slow and cancelled ones, and invalid frames.

An input is a program of steps on connections to a server over loopback. After each program the server
must reply to a health probe, and after the longest deadline no call may occupy a thread.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fuzz import harness

_INSTRUMENTED = ["sparring_serve.server", "sparring_serve.security"]

_DEADLINE_SECONDS = 0.2
_TIMEOUTS = ("", "1m", "100m", "200m", "9S", "no number")
_ROLES = {"pull": "p" * 16, "admin": "a" * 16}
_TOKENS = (*_ROLES.values(), "wrong", "")
_MAX_STEPS = 64


def seeds() -> Iterator[bytes]:
    """Yields programs with only headers, a whole message, a partial one, and a cancelled call."""
    for path in range(10):
        for timeout in range(6):
            for rest in (b"", b"\1\0", b"\2\0\0\5\1", b"\3\0"):
                yield bytes([0, path, timeout, path % 4, 1]) + rest


def make_target() -> CallsTarget:
    """Imports the instrumented modules, and starts a server."""
    from sparring.contracts import TableConfig
    from sparring_serve import (
        LookupServer,
        ServerConfig,
        ServingConfig,
        ShardPosition,
        ShardReplicas,
    )
    from sparring_serve.testing import MemoryTables

    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens"
        tokens.write_text("".join(f"{role} {token}\n" for role, token in _ROLES.items()))
        options = ServerConfig(
            poll_seconds=3600,
            threads=2,
            max_deadline_seconds=_DEADLINE_SECONDS,
            token_file=tokens,
            drain_seconds=0,
        )
        server = LookupServer(
            MemoryTables([TableConfig("item", 4)], {"item": {0: [1, 2, 3, 4]}}),
            ServingConfig(server=options),
            ShardPosition(ShardReplicas((("127.0.0.1:1",),))),
            "127.0.0.1:0",
        )
    return CallsTarget(server)


class CallsTarget:
    """Runs programs of steps on connections to a server; closes the server at the end."""

    def __init__(self, server: Any) -> None:
        import grpc

        from sparring_serve.testing import framed_message
        from sparring_serve.wire.fields import encode
        from sparring_serve.wire.messages import SERVICE, PullRequest, TableIds
        from sparring_serve.wire.open_inference import HEALTH, INFERENCE, HealthRequest

        self._server, self._failures = server, _Failures()
        logging.getLogger("sparring_serve").addHandler(self._failures)
        self._channel = grpc.insecure_channel(server.address)
        self._check = self._channel.unary_unary(f"/{HEALTH}/Check")
        self._probe = encode(HealthRequest(""))
        self._message = framed_message(encode(PullRequest((TableIds("item", bytes(8)),))))
        names = ("Pull", "Describe", "Refresh", "Push", "Nothing")
        self._paths = [f"/{SERVICE}/{name}" for name in names]
        self._paths += [f"/{INFERENCE}/{name}" for name in ("ModelInfer", "ServerLive")]
        self._paths += [f"/{HEALTH}/Check", "", "/"]

    def __call__(self, data: bytes) -> None:
        from sparring_serve.testing import RawConnection

        program = iter(data)
        with RawConnection(self._server.address) as connection:
            streams: list[int] = []
            # The program may end early, and the server may close the connection.
            with suppress(ConnectionError, StopIteration):
                for _ in range(_MAX_STEPS):
                    self._step(connection, streams, program)
            if len(data) % 4 == 0:  # lets calls end by themselves
                self._look()
        self._look()

    def _look(self) -> None:
        if self._probe_server() != b"\x08\x01":
            raise AssertionError("the server is not healthy")
        end = time.monotonic() + 10
        while self._is_busy():
            if time.monotonic() > end:
                raise AssertionError("a call occupies a thread long after the longest deadline")
            time.sleep(0.001)
        self._failures.check()

    def _probe_server(self) -> Any:
        import grpc

        for _ in range(4):
            try:
                return self._check(self._probe, timeout=20)
            except grpc.RpcError as error:
                # The server cancels a probe whose message takes more than a second, as on a busy machine.
                if error.code() is not grpc.StatusCode.CANCELLED:
                    raise
        return self._check(self._probe, timeout=20)

    def _is_busy(self) -> bool:
        server = self._server
        return bool(server.watch._calls or server._calls._num_calls or server._probes._num_calls)

    def _step(self, connection: Any, streams: list[int], program: Iterator[int]) -> None:
        kind = next(program) % 7
        if kind == 0 or not streams:
            path = self._paths[next(program) % len(self._paths)]
            timeout = _TIMEOUTS[next(program) % len(_TIMEOUTS)]
            token = _TOKENS[next(program) % len(_TOKENS)]
            is_last = next(program) % 8 == 0
            streams.append(connection.begin(path, timeout=timeout, token=token, is_last=is_last))
            return
        stream = streams[next(program) % len(streams)]
        message = self._message
        if kind == 1:
            connection.send(stream, message, is_last=True)
        elif kind == 2:
            begin = next(program) % len(message)
            end = begin + next(program) % len(message)
            connection.send(stream, message[begin:end], is_last=next(program) % 4 == 0)
        elif kind == 3:
            connection.cancel(stream)
        elif kind == 4:
            connection.send(stream, bytes(program))
        elif kind == 5:
            time.sleep(next(program) / 10_000)
        else:
            frame, flags, number = next(program), next(program), next(program)
            connection.send_frame(frame, flags, number, bytes(program)[:64])

    def __enter__(self) -> CallsTarget:
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("sparring_serve").removeHandler(self._failures)
        self._channel.close()
        self._server.close()


class _Failures(logging.Handler):
    """Collects the errors that a server logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._found: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._found.append(self.format(record))

    def check(self) -> None:
        if self._found:
            raise AssertionError(f"the server failed: {self._found[0]}")


if __name__ == "__main__":
    sys.exit(harness.run(sys.argv[1:], _INSTRUMENTED, make_target))
