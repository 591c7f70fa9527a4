"""Ends an MPI job when a rank fails.

MPI cannot go on without a rank: the others would wait in its finalisation for ever. So a process
that met a failure, or that an uncaught exception ends, aborts the job as it ends. The launcher then
ends all other ranks, the stopped ones too. The last line on standard error says why.

This changes ``sys.excepthook`` and registers with `atexit`, once in a process, because the end of a
process can be noticed in no other way.
"""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType
from typing import Any

__all__ = ["install", "note"]


class _JobEnd:
    """What is known when the process ends."""

    def __init__(self) -> None:
        self.mpi: Any = None
        self.name = ""
        self.reason: str | None = None

    def on_uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        _hook_before(kind, error, trace)
        self.reason = self.reason or f"{kind.__name__}: {error}"

    def on_exit(self) -> None:
        if self.reason is None or self.mpi.Is_finalized():
            return
        sys.stdout.flush()
        print(f"sparring: {self.name} ends the job: {self.reason}", file=sys.stderr, flush=True)
        # What MPI prints next would name the rank that noticed, not the one that failed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        self.mpi.COMM_WORLD.Abort(1)


_end = _JobEnd()
_hook_before = sys.excepthook


def install(mpi: Any, communicator: Any) -> None:
    """From now on a failure ends the job. A second call changes nothing."""
    global _hook_before
    if _end.mpi is not None:
        return
    _end.mpi = mpi
    _end.name = f"rank {communicator.rank} of {communicator.size}"
    _hook_before, sys.excepthook = sys.excepthook, _end.on_uncaught
    atexit.register(_end.on_exit)


def note(reason: str) -> None:
    """The job ends with this process, because of `reason`. The first reason stays."""
    _end.reason = _end.reason or reason
