"""Ranks as real processes that run what a test gives them, for suites that inherit `CollectiveTests`.

Starting a process that imports a framework takes seconds, so the processes stay and get one job
after the other over a socket. Each job opens a collective of its own.

    launch(address) → processes ── each: python -m sparring_testing.processes.rank_process ADDRESS
          │                                        │ says its rank, as the launcher's variables have it
          ▼                                        ▼
    RankProcesses.run(body, …) ── job → all ranks ── result or traceback → in the order of ranks
"""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from sparring.errors import DeadlineError

__all__ = ["KEY_VARIABLE", "Job", "Launch", "Outcome", "RankProcesses"]

KEY_VARIABLE = "SPARRING_RANK_PROCESSES_KEY"
"""The environment variable with which the processes prove whose they are."""

Launch = Callable[[str, Mapping[str, str]], Sequence["subprocess.Popen[bytes]"]]
"""Starts the ranks: ``(address, environment) -> processes``. Each rank must run
``python -m sparring_testing.processes.rank_process address`` with `environment`."""

# Importing a framework on a busy machine.
_START_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Job:
    """Job of one rank."""

    backend: str
    options: Mapping[str, Any]
    deadline_seconds: float
    world_size: int
    body: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a job on one rank."""

    result: Any = None
    traceback: str | None = None


@dataclass(slots=True)
class RankProcesses:
    """Processes of `world_size` ranks, and the collective that they are to use.

    Args:
        world_size: how many processes `launch` starts; jobs may use fewer.
        backend: the collective, by name.
        options: its options; in texts, ``{meeting}`` becomes a path that each job has for itself.
        launch: starts them.
    """

    world_size: int
    backend: str
    options: Mapping[str, Any]
    launch: Launch
    _folder: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="sparring-ranks-")
    )
    _processes: Sequence[subprocess.Popen[bytes]] = ()
    _connections: list[Connection[Any, Any]] = field(default_factory=list)
    _num_jobs: int = 0

    def start(self) -> None:
        """Starts the processes and waits until each has said its rank.

        Raises:
            DeadlineError: one of them did not.
        """
        key = secrets.token_hex(16)
        address = str(Path(self._folder.name) / "socket")
        by_rank: dict[int, Connection[Any, Any]] = {}
        with Listener(address, "AF_UNIX", backlog=64, authkey=key.encode()) as listener:
            # multiprocessing has no deadline of its own for accept.
            listener._listener._socket.settimeout(_START_SECONDS)  # type: ignore[attr-defined]
            self._processes = self.launch(address, {**os.environ, KEY_VARIABLE: key})
            while len(by_rank) < self.world_size:
                try:
                    connection = listener.accept()
                except TimeoutError as error:
                    self.close()
                    raise DeadlineError(
                        f"rank processes: only ranks {sorted(by_rank)} of {self.world_size} came "
                        f"within {_START_SECONDS:g} s; look at what the others printed"
                    ) from error
                by_rank[connection.recv()] = connection
        self._connections = [by_rank[rank] for rank in range(self.world_size)]

    def run(
        self,
        world_size: int,
        body: Callable[..., Any],
        *arguments: Any,
        deadline_seconds: float = 10.0,
    ) -> list[Any]:
        """Results of ``body(collective, *arguments)`` on each of the first `world_size` ranks.

        `body` and `arguments` are pickled, so `body` is a function of a module that the processes
        can import.

        Raises:
            DeadlineError: a rank did not answer within a minute beyond four deadlines.
            RuntimeError: `body` raised; the message has the tracebacks of all ranks where it did.
        """
        if not self._connections:
            self.start()
        self._num_jobs += 1
        meeting = str(Path(self._folder.name) / f"meeting-{self._num_jobs}")
        options = {
            name: value.format(meeting=meeting) if isinstance(value, str) else value
            for name, value in self.options.items()
        }
        job = Job(self.backend, options, deadline_seconds, world_size, body, arguments)
        for connection in self._connections[:world_size]:
            connection.send(job)
        limit = time.monotonic() + 60 + 4 * deadline_seconds
        outcomes = [self._outcome(rank, limit) for rank in range(world_size)]
        failed = [
            f"rank {rank}: {outcome.traceback}"
            for rank, outcome in enumerate(outcomes)
            if outcome.traceback is not None
        ]
        if failed:
            raise RuntimeError("\n".join(failed))
        return [outcome.result for outcome in outcomes]

    def close(self) -> None:
        """Ends the processes, by force those that do not end within five seconds."""
        for connection in self._connections:
            connection.close()
        limit = time.monotonic() + 5
        for process in self._processes:
            try:
                process.wait(max(limit - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._connections, self._processes = [], ()
        self._folder.cleanup()

    def _outcome(self, rank: int, limit: float) -> Outcome:
        connection = self._connections[rank]
        if not connection.poll(max(limit - time.monotonic(), 0.0)):
            self.close()
            raise DeadlineError(f"rank processes: rank {rank} did not answer; it may hang")
        try:
            outcome: Outcome = connection.recv()
        except EOFError:
            self.close()
            raise RuntimeError(f"rank processes: the process of rank {rank} ended") from None
        return outcome
