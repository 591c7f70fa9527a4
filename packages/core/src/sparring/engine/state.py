"""State that the parts of one rank's engine share: `EngineState`.

`StepContainer` makes it. Within the engine, modules import downward only:

    container                                              the hub that users and adapters hold
    apply · lookup, prefetch · checkpoint/{save, load}     functions and classes that take the state
    quiesce                                                what is joined before each of them
    state
    tables · resource_manager · prefetch_thread · checkpoint/{save_manager, load_manager, flush}
    table_entry · checkpoint/{write_log, copy_on_write, undo_rows}
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum

from sparring.contracts.collective import Collective, Reduction
from sparring.contracts.rendezvous import Rendezvous
from sparring.engine.checkpoint.flush import FlushManager
from sparring.engine.checkpoint.load_manager import LoadManager
from sparring.engine.checkpoint.save_manager import SaveManager
from sparring.engine.prefetch_thread import PrefetchThread
from sparring.engine.resource_manager import ResourceManager
from sparring.engine.tables import Tables
from sparring.errors import ClosedError
from sparring.exchange.ring import RingExchange
from sparring.runtime.events import EventLoop
from sparring.runtime.lifecycle import ProcessGuard
from sparring.storage.in_use import StoragesAtWork

__all__ = ["EngineState", "NonFinite", "StepCounters"]


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


@dataclass(slots=True)
class EngineState:
    """One rank's tables, exchange, background work, counters and policies."""

    collective: Collective
    rendezvous: Rendezvous
    exchange: RingExchange
    tables: Tables
    resources: ResourceManager
    """Batch inputs and gradients of the step under way."""
    events: EventLoop
    at_work: StoragesAtWork
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
    after_step: list[Callable[[], None]] = field(default_factory=list)
    """Called on the driving thread at the end of each step that was applied."""
    is_closed: bool = False
    process: ProcessGuard = field(default_factory=lambda: ProcessGuard("this StepContainer"))

    def check_open(self) -> None:
        """Raises `ClosedError` if the container was closed, or this is a process forked since."""
        self.process.check()
        if self.is_closed:
            raise ClosedError("this StepContainer is closed; make another")

    def span(self, name: str) -> AbstractContextManager[None]:
        """Traces the block."""
        trace = self.exchange.trace
        return nullcontext() if trace is None else trace.span(name, step=self.counters.steps)

    def end_step(self) -> None:
        """Counts a step that was applied."""
        self.set_steps(self.counters.steps + 1)
        for call in self.after_step:
            call()

    def set_steps(self, steps: int) -> None:
        """Goes on from this step."""
        self.counters.steps = steps
        self.exchange.step = steps
