"""Processes of a run, which are started again when they end, and what `/proc` says about them."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "NUM_RANKS",
    "Control",
    "Process",
    "Sample",
    "Supervisor",
    "find_members",
    "heap_bytes",
    "sample",
]

NUM_RANKS = 3
_CHECK_SECONDS = 0.2
_RESTART_SECONDS = 1.0
_MAX_LOG_TAIL = 1_500


class Control:
    """Clock and disk of a process and its ranks, see `shim.c`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._paths: dict[int | None, Path] = {
            None: path,
            **{n: Path(f"{path}.{n}") for n in range(NUM_RANKS)},
        }
        self._values = {each: [0, 0] for each in self._paths}
        for each in self._paths.values():
            each.write_bytes(bytes(16))

    @property
    def environment(self) -> dict[str, str]:
        return {"SOAK_SHIM": str(self._path)}

    def step_clock(self, seconds: float, rank: int | None) -> None:
        """Sets the offset of the wall clock of the process itself, or of one of its ranks."""
        self._set(rank, 0, round(seconds * 1e9))

    def slow_disk(self, seconds: float) -> None:
        """Sets the delay of each access to a file, of the process and all ranks."""
        for each in self._paths:
            self._set(each, 1, round(seconds * 1e6))

    def _set(self, rank: int | None, at: int, value: int) -> None:
        self._values[rank][at] = value
        with self._paths[rank].open("r+b") as file:
            file.write(struct.pack("=qq", *self._values[rank]))


class Process:
    """A command whose output is appended to a log.

    Args:
        name: name in the report.
        command: program and arguments.
        log: file for its output.
        control: clock and disk of the process; None: not preloaded.
        environment: additional variables.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        control: Control | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.log, self.control = name, log, control
        self._command = list(command)
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.is_expected_to_end = False
        """Whether the next end is caused by a fault, or is the end of the run."""
        self.num_starts = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit code, or None if it runs."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        self.is_expected_to_end = False
        self.num_starts += 1
        environment = {**os.environ, **self._environment}
        with self.log.open("ab") as log:
            log.write(f"--- start {self.num_starts}, {time.strftime('%H:%M:%S')}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def signal(self, number: signal.Signals) -> None:
        if self.code is None and self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kills the process and its children, like a machine that fails."""
        self.is_expected_to_end = True
        for pid, _ in find_members({self.name: self}).get(self.name, []):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def is_ready(self) -> bool:
        """Whether a server has written that it is ready."""
        return "ready on" in self.log.read_text()

    def log_tail(self) -> str:
        """Returns the end of its log."""
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_LOG_TAIL))
            return file.read().decode(errors="replace")


class Supervisor:
    """Starts processes again when they fail, as Kubernetes does."""

    def __init__(self) -> None:
        self._processes: list[Process] = []
        self._is_closed = threading.Event()
        self.unexpected: list[tuple[float, str]] = []
        """Time, and a description of each end that no fault caused."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, process: Process) -> None:
        process.start()
        self._processes.append(process)

    def release(self, process: Process) -> None:
        """No longer starts a process again."""
        with suppress(ValueError):
            self._processes.remove(process)

    def close(self) -> None:
        """Kills the processes."""
        self._is_closed.set()
        self._thread.join()
        for each in self._processes:
            each.kill()

    def _run(self) -> None:
        while not self._is_closed.wait(_CHECK_SECONDS):
            for each in list(self._processes):
                if each.code is None:
                    continue
                if each.code == 0:
                    self._processes.remove(each)  # the training, with all its steps
                    continue
                if not each.is_expected_to_end:
                    said = f"{each.name} ended with {each.code}: {each.log_tail()}"
                    self.unexpected.append((time.monotonic(), said))
                if self._is_closed.wait(_RESTART_SECONDS):
                    return
                if each in self._processes:
                    each.start()


@dataclass(frozen=True, slots=True)
class Sample:
    """Resources of a process.

    Args:
        seconds: time since the begin of the run.
        name: name of the process.
        pid: its id, which differs between two starts.
        steps: number of steps that were trained at this time.
        anonymous_bytes: memory that is not a mapped file.
        heap_bytes: memory that the program has allocated and not freed; None for a program that is not
            preloaded.
        descriptors: number of open descriptors.
        threads: number of threads.
    """

    seconds: float
    name: str
    pid: int
    steps: int
    anonymous_bytes: int
    heap_bytes: int | None
    descriptors: int
    threads: int


def find_members(processes: Mapping[str, Process]) -> dict[str, list[tuple[int, str]]]:
    """Returns the processes that belong to each of the given ones, and their names."""
    parents = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with suppress(OSError):
                parents[int(each.name)] = int(
                    (each / "stat").read_text().rpartition(")")[2].split()[1]
                )
    roots = {each.pid: name for name, each in processes.items() if each.code is None}
    members: dict[str, list[tuple[int, str]]] = {}
    for pid in parents:
        at: int | None = pid
        while at is not None and at not in roots:
            at = parents.get(at)
        if at is not None:
            members.setdefault(roots[at], []).append(
                (pid, _name(pid, roots[at], is_root=at == pid))
            )
    return members


def _name(pid: int, root: str, *, is_root: bool) -> str:
    if is_root:
        return root
    folder = Path(f"/proc/{pid}")
    with suppress(OSError):
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        if "publishing.process" in command:
            return "publisher"
        if "sparring-serve-native" in command:
            return f"{root}, native"
        for each in (folder / "environ").read_bytes().split(b"\0"):
            if each.startswith(b"RANK=") and "sparring" in command and "train" in command:
                return f"rank {each[5:].decode()}"
    return f"{root}, other child"


def sample(
    processes: Mapping[str, Process], seconds: float, steps: int, heaps: Path
) -> list[Sample]:
    """Returns the resources of all processes and their children that can be read."""
    found = []
    for members in find_members(processes).values():
        for pid, name in members:
            folder = Path(f"/proc/{pid}")
            with suppress(OSError, KeyError):
                lines = (folder / "status").read_text().splitlines()
                status = dict(line.split(":", 1) for line in lines)
                found.append(
                    Sample(
                        seconds,
                        name,
                        pid,
                        steps,
                        int(status["RssAnon"].split()[0]) * 1024,
                        heap_bytes(heaps / str(pid)),
                        len(list((folder / "fd").iterdir())),
                        int(status["Threads"]),
                    )
                )
    return found


def heap_bytes(path: Path) -> int | None:
    """Returns the number that `shim.c` wrote last."""
    content = path.read_bytes() if path.exists() else b""
    return struct.unpack("=q", content)[0] if len(content) == 8 else None
