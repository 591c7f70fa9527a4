"""State that the parts of one rank's engine share, and the order in which they wait: `quiesce`.

`StepContainer` makes it. Within the engine, modules import downward only:

    container                                              the hub that users and adapters hold
    apply · lookup, prefetch · checkpoint/{save, load}     functions and classes that take the state
    state                                                  and what is joined before each of them
    prefetch_thread · checkpoint/{save_manager, load_manager, flush}
    tables · resource_manager · storage_choice · checkpoint/copy_on_write
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum

from sparring.contracts.ranks.collective import Collective, Reduction
from sparring.contracts.ranks.rendezvous import Membership, Rendezvous
from sparring.contracts.ranks.shard_map import ShardMap
from sparring.engine.checkpoint.flush_manager import FlushManager
from sparring.engine.checkpoint.load_manager import LoadManager
from sparring.engine.checkpoint.save_manager import SaveManager
from sparring.engine.lookup.prefetch_thread import PrefetchThread, RunningPrefetch
from sparring.engine.resource_manager import ResourceManager
from sparring.engine.tables.tables import Tables
from sparring.errors import ClosedError, InvalidArgumentError
from sparring.exchange.ring import RingExchange
from sparring.runtime.events import EventLoop
from sparring.runtime.lifecycle import ProcessGuard
from sparring.storage.load import BusyStorages

__all__ = [
    "EngineState",
    "NonFinite",
    "Purpose",
    "StepCounters",
    "join_prefetch",
    "find_membership",
    "quiesce",
    "try_quiesce",
]


def find_membership(collective: Collective, rendezvous: Rendezvous) -> Membership:
    """This rank's place among those that share the tables.

    Raises:
        InvalidArgumentError: collective and rendezvous are of two jobs.
    """
    found, num_ranks = collective.world_size, rendezvous.shard_map().world_size
    expected = 1 if rendezvous.is_independent else num_ranks
    if found != expected:
        raise InvalidArgumentError(
            f"container: the rendezvous knows {num_ranks} ranks, which need a collective of {expected}, "
            f"found one of {found}; both must come from one job"
        )
    return (
        rendezvous.membership() if rendezvous.is_independent else Membership(collective.rank, found)
    )


class NonFinite(Enum):
    """Policy for gradients that hold NaN or infinity."""

    RAISE = "raise"
    """Raise before any row changes; the step's gradients are dropped."""
    SKIP = "skip"
    """Leave the rows concerned as they are, count them, and update the others."""


@dataclass(slots=True)
class StepCounters:
    """Totals since the container was made."""

    steps: int = 0
    rows_updated: int = 0
    rows_evicted: int = 0
    rows_skipped_non_finite: int = 0
    gradients_not_admitted: int = 0
    """Gradients of keys that had no row and were not admitted."""
    rows_expired: int = 0
    """Rows that were removed because no step had visited them for long."""


@dataclass(slots=True)
class EngineState:
    """One rank's tables, exchange, background work, counters and policies."""

    collective: Collective
    membership: Membership
    """This rank's, whose shard of each table is here. It is that in the collective, but for ranks
    that meet in none (`Rendezvous.is_independent`)."""
    shard_map: ShardMap
    exchange: RingExchange
    tables: Tables
    resources: ResourceManager
    """Batch inputs and gradients of the step under way."""
    events: EventLoop
    at_work: BusyStorages
    """The storages in which a flush or a load runs."""
    prefetches: PrefetchThread
    loads: LoadManager
    saves: SaveManager
    flushes: FlushManager
    reduction: Reduction
    non_finite: NonFinite
    memory_bytes: int | None
    """The most memory that the tables of this rank may hold together; None: no limit."""
    counters: StepCounters = field(default_factory=StepCounters)
    clock: Callable[[], float] = time.time
    """Seconds, by which rows expire after days; tests replace it."""
    after_step: list[Callable[[], None]] = field(default_factory=list)
    """Called on the driving thread at the end of each step that was applied."""
    is_closed: bool = False
    process: ProcessGuard = field(default_factory=lambda: ProcessGuard("this StepContainer"))

    def check_open(self) -> None:
        """Raises `ClosedError` if the container was closed, or this is a process forked since."""
        if self.is_closed or os.getpid() != self.process.made_in:
            self.process.check()
            raise ClosedError("this StepContainer is closed; make another")

    def span(self, name: str) -> AbstractContextManager[None]:
        """Traces the block."""
        trace = self.exchange.session.messenger.trace
        return nullcontext() if trace is None else trace.span(name, step=self.counters.steps)

    def end_step(self) -> None:
        """Counts a step that was applied."""
        self.counters.steps += 1
        self.exchange.session.step = self.counters.steps
        for call in self.after_step:
            call()

    def set_steps(self, steps: int) -> None:
        """Goes on from this step."""
        self.counters.steps = steps
        self.exchange.session.step = steps


class Purpose(Enum):
    """Purpose of an operation: which background work it waits for, and in which order.

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
    if os.getpid() != state.process.made_in:
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
        if purpose.joins_save and state.saves.running is not None:
            state.saves.join(save_seconds)
        if purpose.writes:
            _wait_for_space(state)
    except Exception as error:
        return error
    return None


def _wait_for_space(state: EngineState) -> None:
    """Steps 6 to 8."""
    if state.events.first_failed is not None:
        state.events.check()
    for entry in state.tables.entries.values():
        if entry.written_back is not None:
            entry.written_back.wait_for_capacity()
    if state.saves.running is not None:
        state.saves.wait_for_capacity()


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
