"""State that the parts of one rank's engine share, and the order in which operations wait: `quiesce`.

`StepContainer` creates it. Within the engine, modules import only from lower lines:

    container                                              public interface for users and adapters
    apply · lookup, prefetch · checkpoint/{save, load}     functions and classes that take the state
    state                                                  the state, and the waits of each operation
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
    """Returns this rank's membership among the ranks that share the tables.

    Raises:
        InvalidArgumentError: the collective and the rendezvous belong to different jobs.
    """
    found, num_ranks = collective.world_size, rendezvous.shard_map().world_size
    expected = 1 if rendezvous.is_independent else num_ranks
    if found != expected:
        raise InvalidArgumentError(
            f"container: the rendezvous has {num_ranks} ranks, which need a collective of {expected} "
            f"ranks, found one of {found}; create both for the same job"
        )
    return (
        rendezvous.membership() if rendezvous.is_independent else Membership(collective.rank, found)
    )


class NonFinite(Enum):
    """Policy for gradients that contain NaN or infinity."""

    RAISE = "raise"
    """Raise before any row changes, and drop the step's gradients."""
    SKIP = "skip"
    """Skip and count the affected rows, and update the others."""


@dataclass(slots=True)
class StepCounters:
    """Totals since the container was created."""

    steps: int = 0
    rows_updated: int = 0
    rows_evicted: int = 0
    rows_skipped_non_finite: int = 0
    gradients_not_admitted: int = 0
    """Gradients of keys that had no row and were not admitted."""
    rows_expired: int = 0
    """Rows that were removed because no step had accessed them within their TTL."""


@dataclass(slots=True)
class EngineState:
    """One rank's tables, exchange, background work, counters and policies."""

    collective: Collective
    membership: Membership
    """Rank number that determines this rank's shards. It equals the rank in the collective, except for
    ranks without a common collective (`Rendezvous.is_independent`)."""
    shard_map: ShardMap
    exchange: RingExchange
    tables: Tables
    resources: ResourceManager
    """Batch inputs and gradients of the current step."""
    events: EventLoop
    at_work: BusyStorages
    """Storages in which a flush or a load is running."""
    prefetches: PrefetchThread
    loads: LoadManager
    saves: SaveManager
    flushes: FlushManager
    reduction: Reduction
    non_finite: NonFinite
    memory_bytes: int | None
    """Maximum memory of this rank's tables together; None sets no limit."""
    counters: StepCounters = field(default_factory=StepCounters)
    clock: Callable[[], float] = time.time
    """Clock in seconds for a TTL in days; tests replace it."""
    after_step: list[Callable[[], None]] = field(default_factory=list)
    """Functions that are called on the driving thread after each applied step."""
    is_closed: bool = False
    process: ProcessGuard = field(default_factory=lambda: ProcessGuard("this StepContainer"))

    def check_open(self) -> None:
        """Raises `ClosedError` if the container was closed, or if this process was forked after it was
        created."""
        if self.is_closed or os.getpid() != self.process.made_in:
            self.process.check()
            raise ClosedError("this StepContainer is closed; create another one")

    def span(self, name: str) -> AbstractContextManager[None]:
        """Records a block as a span of the trace."""
        trace = self.exchange.session.messenger.trace
        return nullcontext() if trace is None else trace.span(name, step=self.counters.steps)

    def end_step(self) -> None:
        """Counts an applied step and calls `after_step`."""
        self.counters.steps += 1
        self.exchange.session.step = self.counters.steps
        for entry in self.tables.declared.values():
            entry.forget_unowned_scalars()
        for call in self.after_step:
            call()

    def set_steps(self, steps: int) -> None:
        """Sets the number of applied steps, as after a load."""
        self.counters.steps = steps
        self.exchange.session.step = steps


class Purpose(Enum):
    """Purpose of an operation: determines which background work it waits for, and in which order.

    Four kinds of work run concurrently with the thread that drives steps: a load, prefetches, a flush
    and a save. Each operation first waits for those that it cannot run concurrently with, in this
    order:

        | | waits for or checks           | reason for the position                                   |
        |-|-------------------------------|-----------------------------------------------------------|
        |1| the load                      | it uses the tables and the collective                     |
        |2| prefetches                    | they use the exchange                                     |
        | | *from here on the exchange is free, so failures can be reported to all ranks*             ||
        |3| failure of the last load      | its rows are missing, so no operation may depend on them  |
        |4| the flush                     | it moves rows between tiers, like a writer                |
        |5| the save                      | it may take longest, and stops pausing when joined        |
        |6| failures of the event loop    | a failure of 4 is registered when the flush is joined     |
        |7| space in the tiers            | a finished flush has freed some                           |
        |8| space for undo rows           | last, because a save that is too slow is aborted          |

    Each purpose specifies the waits that it needs:

        | purpose    | waits          | operations                                                      |
        |------------|----------------|-----------------------------------------------------------------|
        | INSPECT    | 1              | read counters, bytes and storages of tables                     |
        | COUNT      | 1 4            | count rows, which a flush between tiers changes                 |
        | MEET       | 1 2            | use the collective; failures are left for a later operation     |
        | READ       | 1 2 3          | look up, prefetch, flush                                        |
        | RESHAPE    | 1 2 4          | change the optimizer state                                      |
        | WRITE      | 1 2 3 4 6 7 8  | apply a step; a save continues concurrently, from undo rows     |
        | REPLACE    | 1 2 3 4 5      | load, and save, which starts from unchanging tables             |

    Waits 1 and 2 raise. `try_quiesce` returns the error of a later one, so that it can be reported to
    all ranks.
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
    """Waits for the background work that `purpose` cannot run concurrently with.

    Raises:
        ClosedError: this process was forked after the container was created.
        SparringError: a prefetch failed, and there are several ranks.
        BackgroundError: a load failed, or, for WRITE, other work on the event loop failed.
        DeadlineError: a flush or a save did not finish in time, or a stack has no space.
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
    """Waits like `quiesce`, but returns the error of waits 3 to 8 instead of raising it.

    Args:
        known: an earlier error of this rank; returned after waits 1 and 2.
        save_seconds: timeout of the wait for a save; None uses the deadline of the save.

    Raises:
        SparringError: a prefetch failed, and there are several ranks.
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
    """Performs waits 6 to 8."""
    if state.events.first_failed is not None:
        state.events.check()
    for entry in state.tables.entries.values():
        if entry.written_back is not None:
            entry.written_back.wait_for_capacity()
    if state.saves.running is not None:
        state.saves.wait_for_capacity()


def join_prefetch(state: EngineState, running: RunningPrefetch) -> BaseException | None:
    """Waits until a prefetch has pulled its rows, and returns its error."""
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
