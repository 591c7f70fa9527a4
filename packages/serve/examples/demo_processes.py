"""Runs the processes of a demo on this machine."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import socket

MAX_WAIT_SECONDS = 120.0


class Process:
    """A running command, whose output is written to a new file in the folder."""

    def __init__(self, folder: Path, name: str, command: list[str]) -> None:
        self.name = name
        self._log = folder / f"{name} {len(list(folder.glob('*.log')))}.log"
        with self._log.open("w") as log:
            self.popen = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def output(self) -> str:
        return self._log.read_text()

    def has_ended(self) -> bool:
        """Raises RuntimeError with the end of the output if the command failed."""
        code = self.popen.poll()
        if code:
            raise RuntimeError(f"{self.name} ended with {code}: {self.output()[-2000:]}")
        return code is not None


@contextmanager
def running_process(folder: Path, name: str, command: list[str]) -> Iterator[Process]:
    """Runs a command, and terminates it when the context ends."""
    process = Process(folder, name, command)
    try:
        yield process
    finally:
        process.popen.terminate()
        try:
            process.popen.wait(20)
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()


@contextmanager
def sparring_command(folder: Path, name: str, *arguments: str) -> Iterator[Process]:
    """Runs ``sparring NAME ARGUMENTS``."""
    command = [sys.executable, "-m", "sparring", name, *arguments]
    with running_process(folder, f"sparring {name}", command) as process:
        yield process


@contextmanager
def running_shard(folder: Path, *arguments: str) -> Iterator[Process]:
    """Runs ``sparring serve ARGUMENTS``; returns when the server accepts calls."""
    with sparring_command(folder, "serve", *arguments) as shard:
        wait_for("a server", lambda: "ready on" in shard.output(), shard)
        yield shard


def wait_for(what: str, is_done: Callable[[], bool], *processes: Process) -> None:
    """Waits until `is_done` returns true; raises RuntimeError if a process fails before that."""
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while not is_done():
        for process in processes:
            process.has_ended()
        if time.monotonic() > deadline:
            logs = "\n".join(f"{each.name}: {each.output()[-2000:]}" for each in processes)
            raise RuntimeError(f"waited {MAX_WAIT_SECONDS:g} s without success for {what}\n{logs}")
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Returns ports below the range that outgoing connections use, so that they remain free."""
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.add(port)
    return list(found)
