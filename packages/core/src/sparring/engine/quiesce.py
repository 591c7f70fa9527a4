"""Order in which an operation waits for background work: `quiesce`.

Four kinds of work run next to the thread that drives steps: a load, prefetches, a flush and a save.
Each operation first joins those that it cannot run next to, always in this order:

    | | joined or checked             | why it comes there                                        |
    |-|-------------------------------|-----------------------------------------------------------|
    |1| the load                      | it holds the tables and the collective                    |
    |2| prefetches                    | they hold the exchange                                    |
    | | *from here on the exchange is free: what goes wrong can be told to all ranks*             ||
    |3| failure of the last load      | its rows are missing: nothing may be read or built on it  |
    |4| the flush                     | it moves rows between tiers, as a writer does             |
    |5| the save                      | it may take longest, and ends its pauses once joined      |
    |6| failures of the event loop    | that of 4 is registered once the flush was joined         |
    |7| room in the tiers             | a flush that is over has made some                        |
    |8| room for undo rows            | last, as it only waits: a save that is too slow is given up |

and each purpose names the steps that it needs:

    | purpose    | steps          | of                                                              |
    |------------|----------------|-----------------------------------------------------------------|
    | INSPECT    | 1              | counters, bytes and storages of tables                          |
    | COUNT      | 1 4            | numbers of rows, which a flush between tiers changes            |
    | MEET       | 1 2            | anything that uses the collective; failures stay for a later one|
    | READ       | 1 2 3          | lookups, prefetches, flushes                                    |
    | RESHAPE    | 1 2 4          | a change of the optimizer's state                               |
    | WRITE      | 1 2 3 4 6 7 8  | a step: a save goes on next to it, from undo rows               |
    | REPLACE    | 1 2 3 4 5      | a load, and a save, which begins from tables at rest            |

Steps 1 and 2 raise. What a later step finds, `try_quiesce` returns, for all ranks to be told.
"""

from __future__ import annotations

import time
from enum import Enum

from sparring.engine.prefetch_thread import RunningPrefetch
from sparring.engine.state import EngineState

__all__ = ["Purpose", "join_prefetch", "quiesce", "try_quiesce"]


class Purpose(Enum):
    """Purpose of an operation: the steps of the table above."""

    INSPECT = (1,)
    COUNT = (1, 4)
    MEET = (1, 2)
    READ = (1, 2, 3)
    RESHAPE = (1, 2, 4)
    WRITE = (1, 2, 3, 4, 6, 7, 8)
    REPLACE = (1, 2, 3, 4, 5)

    def __init__(self, *steps: int) -> None:
        self.frees_exchange = 2 in steps
        self.checks_load = 3 in steps
        self.joins_flush = 4 in steps
        self.joins_save = 5 in steps
        self.writes = 8 in steps


def quiesce(state: EngineState, purpose: Purpose) -> None:
    """Returns when no work runs that `purpose` cannot run next to.

    Raises:
        ClosedError: this process was forked after the container was made.
        SparringError: a prefetch failed, and there are other ranks, which go on no further.
        BackgroundError: a load failed, or, for WRITE, other work on the event loop.
        DeadlineError: a flush or a save does not end, or a stack has no room.
    """
    found = try_quiesce(state, purpose)
    if found is not None:
        raise found


def try_quiesce(
    state: EngineState,
    purpose: Purpose,
    known: Exception | None = None,
    *,
    save_seconds: float | None = None,
) -> Exception | None:
    """As `quiesce`, but returns what steps 3 to 8 raise: why this rank cannot go on.

    Args:
        known: why it cannot anyway: returned after steps 1 and 2.
        save_seconds: how long to wait for a save; None: as long as it was given.

    Raises:
        SparringError: a prefetch failed, and there are other ranks, which go on no further.
    """
    state.process.check()
    if state.loads.task is not None:
        state.loads.join()
    if purpose.frees_exchange and state.prefetches.unfinished:
        _join_prefetches(state)
    if known is not None:
        return known
    try:
        if purpose.checks_load and state.loads.ended is not None:
            state.loads.check()
        if purpose.joins_flush and state.flushes.task is not None:
            state.flushes.join()
        if purpose.joins_save:
            state.saves.join(save_seconds)
        if purpose.writes:
            state.events.check()
            for entry in state.tables.entries.values():
                if entry.written_back is not None:
                    entry.written_back.wait_for_room()
            if state.saves.running is not None:
                state.saves.wait_for_room()
    except Exception as error:
        return error
    return None


def join_prefetch(state: EngineState, running: RunningPrefetch) -> BaseException | None:
    """Waits until a prefetch has pulled. Returns what went wrong."""
    future = running.future
    if future.done():
        return future.exception()
    begin = time.perf_counter()
    with state.span("wait for prefetch"):
        error = future.exception()
    state.prefetches.counters.wait_seconds += time.perf_counter() - begin
    return error


def _join_prefetches(state: EngineState) -> None:
    errors = [join_prefetch(state, running) for running in state.prefetches.unfinished]
    error = next((error for error in errors if error is not None), None)
    if error is not None and state.collective.world_size > 1:
        state.resources.discard()
        raise error
