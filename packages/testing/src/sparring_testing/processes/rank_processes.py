"""Ranks as processes that run the functions of a test, for suites that inherit `CollectiveTests`.

Starting a process that imports a framework takes seconds, so the processes are reused: they receive one
job after another over a socket. Each job opens its own collective.

    launch(address) → processes ── each: python -m sparring_testing.processes.rank_process ADDRESS
          │                                        │ sends its rank, from the launcher's variables
          ▼                                        ▼
    RankProcesses.run(body, …) ── job → all ranks ── result or traceback → ordered by rank
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
"""Environment variable with the key that authenticates the processes."""

Launch = Callable[[str, Mapping[str, str]], Sequence["subprocess.Popen[bytes]"]]
"""Starts the ranks: ``(address, environment) -> processes``. Each rank must run
``python -m sparring_testing.processes.rank_process address`` with `environment`."""

# Importing a framework can take this long on a busy machine.
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
    """Processes of `world_size` ranks and the collective that they use.

    Args:
        world_size: number of processes that `launch` starts. A job may use fewer.
        backend: name of the collective.
        options: options of the collective. In strings, ``{meeting}`` is replaced by a path that is
            unique to each job.
        launch: starts the processes.
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
        """Starts the processes and waits until each has sent its rank.

        Raises:
            DeadlineError: not all of them did in time.
        """
        key = secrets.token_hex(16)
        address = str(Path(self._folder.name) / "socket")
        by_rank: dict[int, Connection[Any, Any]] = {}
        with Listener(address, "AF_UNIX", backlog=64, authkey=key.encode()) as listener:
            # accept of multiprocessing does not support a timeout.
            listener._listener._socket.settimeout(_START_SECONDS)  # type: ignore[attr-defined]
            self._processes = self.launch(address, {**os.environ, KEY_VARIABLE: key})
            while len(by_rank) < self.world_size:
                try:
                    connection = listener.accept()
                except TimeoutError as error:
                    self.close()
                    raise DeadlineError(
                        f"rank processes: only ranks {sorted(by_rank)} of {self.world_size} connected "
                        f"within {_START_SECONDS:g} s; see the output of the others"
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
        """Runs ``body(collective, *arguments)`` on the first `world_size` ranks; returns the results.

        `body` and `arguments` are pickled, so `body` must be a function of a module that the processes
        can import.

        Raises:
            DeadlineError: a rank did not reply within four deadlines plus one minute.
            RuntimeError: `body` raised an error; the message contains the tracebacks of all ranks.
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
        """Ends the processes; kills those that do not exit within five seconds."""
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
            raise DeadlineError(
                f"rank processes: rank {rank} did not reply in time; check whether it hangs"
            )
        try:
            outcome: Outcome = connection.recv()
        except EOFError:
            self.close()
            raise RuntimeError(
                f"rank processes: the process of rank {rank} ended during a job; see its output"
            ) from None
        return outcome
