"""Failure detector of MPI jobs: a rank that fails ends the job, and the last line printed names it.

MPI cannot go on without a rank: the others would wait in its finalisation for ever. So a process that
met a failure, or that an uncaught exception ends, aborts the job as it ends, and says why.

A rank that is killed can say nothing, and MPI's launcher then kills all others within milliseconds. So
the first rank of each machine starts a small process, the monitor, to which each rank there holds a
connection. The first that is closed without a notice is that of the rank that ended:

    rank → monitor:  "RANK PROCESS\\n", and at the end "left\\n", or "reported\\n" where the rank has
                     said why the job ends

The monitor ends with the ranks. Where ranks of several machines ended, the earliest time counts.

`install` changes ``sys.excepthook`` and registers with `atexit`, once in a process, because the end of
a process can be noticed in no other way.
"""

from __future__ import annotations

import datetime
import math
import os
import select
import socket
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from types import TracebackType
from typing import Any

from sparring.errors import PeerFailure
from sparring.runtime.lifecycle import at_exit

__all__ = ["install", "note"]

# The launcher ends all ranks within this; what they print meanwhile comes before the last line.
_SETTLE_SECONDS = 0.2

_START_SECONDS = 30.0
"""How long ranks wait for the monitor to start."""


class _JobEnd:
    """State of this rank that is known when its process ends."""

    def __init__(self, mpi: Any, communicator: Any) -> None:
        self._mpi = mpi
        self._name = f"rank {communicator.rank} of {communicator.size}"
        self._monitor = _connect(mpi, communicator) if communicator.size > 1 else None
        self._hook_before = sys.excepthook
        self._process = os.getpid()
        self.reason: str | None = None

    def on_uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._hook_before(kind, error, trace)
        if os.getpid() != self._process:
            return  # a forked child
        if isinstance(error, PeerFailure):
            # It may know more than the collective that noted it first.
            self.reason = str(error)
        self.reason = self.reason or f"{kind.__name__}: {error}"

    def on_exit(self) -> None:
        reason = None if self._mpi.Is_finalized() else self.reason
        sys.stdout.flush()
        if reason is not None:
            print(f"sparring: {self._name} ends the job: {reason}", file=sys.stderr, flush=True)
        if self._monitor is not None:
            with suppress(OSError), self._monitor:  # the monitor may have ended
                self._monitor.sendall(b"left\n" if reason is None else b"reported\n")
        if reason is None:
            return
        # Ranks that noticed the same finish what they are saying, so that the last line is whole.
        time.sleep(_SETTLE_SECONDS)
        # What MPI prints next would name the rank that noticed, not the one that failed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        self._mpi.COMM_WORLD.Abort(1)


_installed: list[_JobEnd] = []


def install(mpi: Any, communicator: Any) -> None:
    """From now on a failure ends the job. A second call changes nothing."""
    if not _installed:
        end = _JobEnd(mpi, communicator)
        _installed.append(end)
        sys.excepthook = end.on_uncaught
        at_exit(end.on_exit)


def note(reason: str) -> None:
    """The job ends with this process, because of `reason`. The first reason stays."""
    for end in _installed:
        end.reason = end.reason or reason


def _connect(mpi: Any, communicator: Any) -> socket.socket:
    """Connects to the monitor of this machine, which its first rank starts. All ranks call it."""
    here = communicator.Split_type(mpi.COMM_TYPE_SHARED)
    # Abstract addresses belong to the network of a machine, so processes of one machine share them.
    address = here.bcast(f"\0sparring-monitor-{uuid.uuid4()}" if here.rank == 0 else None)
    if here.rank == 0:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(here.size)
            numbers = [listener.fileno(), here.size, communicator.size]
            subprocess.Popen(
                [sys.executable, "-m", __name__, *map(str, numbers)],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                # It finds the same modules as this process, and none in the current folder.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"},
                start_new_session=True,  # out of the process group that the launcher kills
            )
    here.Barrier()
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_START_SECONDS)
    with suppress(OSError):  # the job runs without a monitor too
        connection.connect(address)
        connection.sendall(f"{communicator.rank} {os.getpid()}\n".encode())
        connection.recv(1)  # it watches from now on
    return connection


# -- in the monitor ---------------------------------------------------------------


def monitor(listener: socket.socket, num_local_ranks: int, world_size: int) -> None:
    """Prints which rank ended first, if one ended without a notice.

    Args:
        num_local_ranks: how many ranks connect.
        world_size: ranks of the whole job, for the message.
    """
    listener.settimeout(_START_SECONDS)
    received = {listener.accept()[0]: "" for _ in range(num_local_ranks)}
    for connection in received:
        with suppress(OSError):  # it has ended already, which is read next
            connection.sendall(b".")
    connected, message, limit = list(received), "", math.inf
    while connected and time.monotonic() < limit:
        for connection in select.select(connected, [], [], 0.05 if message else None)[0]:
            text = ""
            with suppress(ConnectionError):
                text = connection.recv(65536).decode(errors="replace")
            received[connection] += text
            if text.endswith("reported\n"):
                return
            if text:
                continue
            connected.remove(connection)
            if not message and not received[connection].endswith("left\n"):
                message = _describe(received[connection], world_size)
                limit = time.monotonic() + _SETTLE_SECONDS
    if message:
        print(f"sparring: {message}", file=sys.stderr, flush=True)


def _describe(received: str, world_size: int) -> str:
    """Message on a rank that closed its connection without a notice."""
    number, _, process = (received or "? ?").strip().partition(" ")
    return (
        f"rank {number} of {world_size} (process {process} on {socket.gethostname()}) ended at "
        f"{datetime.datetime.now():%H:%M:%S.%f} without leaving its group, so the launcher ends the "
        f"job; find out what became of rank {number}, then restart all ranks from the last snapshot"
    )


if __name__ == "__main__":
    with suppress(TimeoutError):  # a rank did not come so far
        monitor(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
