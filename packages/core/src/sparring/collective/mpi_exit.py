"""Ends an MPI job when a rank fails.

MPI cannot go on without a rank: the others would wait in its finalisation for ever. So a process
that met a failure, or that an uncaught exception ends, aborts the job as it ends. The launcher then
ends all other ranks, the stopped ones too. The last line on standard error says why. For a rank
that is killed and can say nothing, `sparring.collective.witness` does.

This changes ``sys.excepthook`` and registers with `atexit`, once in a process, because the end of a
process can be noticed in no other way.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import uuid
from types import TracebackType
from typing import Any

from sparring.collective.witness import WitnessedRank, start_witness
from sparring.errors import PeerFailure

__all__ = ["install", "note"]


# Ranks that noticed the same finish what they are saying, so that the last line is a whole one.
_LAST_WORDS_SECONDS = 0.2


class _JobEnd:
    """State that is known when the process ends."""

    def __init__(self) -> None:
        self.mpi: Any = None
        self.name = ""
        self.reason: str | None = None
        self.witnessed: WitnessedRank | None = None

    def on_uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        _hook_before(kind, error, trace)
        if isinstance(error, PeerFailure):
            # It may know more than the collective that noted it first.
            self.reason = str(error)
        self.reason = self.reason or f"{kind.__name__}: {error}"

    def on_exit(self) -> None:
        reason = None if self.mpi.Is_finalized() else self.reason
        sys.stdout.flush()
        if reason is not None:
            print(f"sparring: {self.name} ends the job: {reason}", file=sys.stderr, flush=True)
        if self.witnessed is not None:
            self.witnessed.leave(has_told=reason is not None)
        if reason is None:
            return
        time.sleep(_LAST_WORDS_SECONDS)
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
    _end.witnessed = _join_witness(mpi, communicator)
    _hook_before, sys.excepthook = sys.excepthook, _end.on_uncaught
    atexit.register(_end.on_exit)


def _join_witness(mpi: Any, communicator: Any) -> WitnessedRank | None:
    """All ranks call it. The first of each machine starts the witness."""
    if communicator.size == 1:
        return None
    here = communicator.Split_type(mpi.COMM_TYPE_SHARED)
    # Abstract addresses belong to the network of a machine, so processes of one machine share them.
    address = here.bcast(f"\0sparring-witness-{uuid.uuid4()}" if here.rank == 0 else None)
    if here.rank == 0:
        start_witness(address, here.size, communicator.size)
    here.Barrier()
    return WitnessedRank(address, communicator.rank, os.getpid())


def note(reason: str) -> None:
    """The job ends with this process, because of `reason`. The first reason stays."""
    _end.reason = _end.reason or reason
