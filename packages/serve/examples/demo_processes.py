"""Processes of a demo, on loopback."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

__all__ = [
    "START_SECONDS",
    "Process",
    "free_ports",
    "running_process",
    "sparring_command",
    "wait_for",
]

START_SECONDS = 120.0


class Process:
    """A command, and the file of what it says."""

    def __init__(
        self,
        folder: Path,
        name: str,
        command: list[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        number = len(list(folder.glob(f"{name}.*.log")))
        self._path = folder / f"{name}.{number}.log"
        with self._path.open("w") as log:
            self.popen = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, env=environment
            )

    def said(self) -> str:
        return self._path.read_text()

    def has_ended(self) -> bool:
        """Whether it has; raises if it failed."""
        code = self.popen.poll()
        if code:
            raise RuntimeError(f"{self.name} ended with {code}: {self.said()[-2000:]}")
        return code is not None


@contextmanager
def running_process(
    folder: Path, name: str, command: list[str], environment: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """A process that is asked to end, and after a while killed, when the context is left."""
    process = Process(folder, name, command, environment)
    try:
        yield process
    finally:
        process.popen.send_signal(signal.SIGTERM)
        try:
            process.popen.wait(20)
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()


@contextmanager
def sparring_command(folder: Path, name: str, *arguments: str) -> Iterator[Process]:
    """``sparring NAME ARGUMENTS``."""
    command = [sys.executable, "-m", "sparring", name, *arguments]
    with running_process(folder, f"sparring {name}", command) as process:
        yield process


def wait_for(what: str, is_there: Callable[[], bool], *processes: Process) -> None:
    """Waits for something that these processes do; raises where one of them ends first."""
    deadline = time.monotonic() + START_SECONDS
    while not is_there():
        for process in processes:
            if process.has_ended() and process.name != "sparring train":
                raise RuntimeError(f"{process.name} ended: {process.said()}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not come within {START_SECONDS:g} seconds")
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
