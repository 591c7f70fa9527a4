"""The hub of a training: `StepContainer`, and `Step` to drive it by hand.

In an ordinary training loop a framework adapter drives it: forward calls `lookup`, backward hands
gradients to `resources.accumulate`, the optimizer calls `apply`. It knows nothing of any framework.

    ids → lookup: dedup, exchange, initialise → rows of a shadow
    gradient of the shadow → resources.accumulate
    apply: exchange, check, find, update in place, upsert

Forward reads; only `apply` writes. It computes all tables' new rows before it writes the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.applying import TableUpdate, Update, apply_methods, apply_update
from sparring.closable import call_each
from sparring.collective import Collective, LocalGroup, Reduction
from sparring.declared_table import DeclaredTable, StorageChoice
from sparring.device_ways import travel_in_words
from sparring.errors import ClosedError, InvalidArgumentError
from sparring.exchange import ExchangeOptions, RingExchange
from sparring.job_settings import JobSettings
from sparring.kernel_set import KernelSet
from sparring.lookup_ahead import Aheads, LookupAhead, looked_up
from sparring.non_finite import NonFinite
from sparring.rendezvous import Rendezvous, SingleRendezvous
from sparring.saving.loads import Loads
from sparring.saving.requests import Loaded, Retention, Saved, State
from sparring.saving.saves import SaveOptions, Saves
from sparring.saving.saving_container import SavingContainer
from sparring.step_by_hand import Step
from sparring.step_results import Lookup, StepCounters
from sparring.table_container import TableContainer
from sparring.trace import Trace
from sparring.updates.contract import MethodChoice

if TYPE_CHECKING:
    from sparring.plugins import PluginManager

__all__ = [
    "Loaded",
    "Lookup",
    "LookupAhead",
    "NonFinite",
    "Retention",
    "SaveOptions",
    "Saved",
    "State",
    "Step",
    "StepContainer",
    "StepCounters",
    "StorageChoice",
    "TableUpdate",
    "Update",
]


class StepContainer(TableContainer, SavingContainer):
    """Holds what a training needs: resources, collective, rendezvous, storages, pool, events.

    One thread drives lookups and steps; gradients may come from any thread.

    Args:
        collective: this rank's place in the group; None means a world of one.
        rendezvous: who is here and who owns what; None means a world of one.
        non_finite: what to do with gradients that hold NaN or infinity.
        reduction: how gradients of several ranks combine; the mean makes W ranks equal to one
            process on the joined batch.
        exchange: how rows and gradients travel; the same on all ranks.
        memory_bytes: the most memory that the tables of this rank may hold together. It is looked
            at before each step is written, so they may be past it by what one step adds; then all
            ranks refuse the next one. None sets no limit.
        config: the run's configuration, JSON values only: ranks compare it when they begin.
        plugin_manager: where storage backends are looked up; None looks through the installed
            plugins.
    """

    def __init__(
        self,
        *,
        collective: Collective | None = None,
        rendezvous: Rendezvous | None = None,
        non_finite: NonFinite | str = NonFinite.RAISE,
        reduction: Reduction = Reduction.MEAN,
        exchange: ExchangeOptions | None = None,
        memory_bytes: int | None = None,
        config: Mapping[str, Any] | None = None,
        plugin_manager: PluginManager | None = None,
    ) -> None:
        super().__init__(
            collective or LocalGroup(1).join(0), rendezvous or SingleRendezvous(), plugin_manager
        )
        if reduction is Reduction.MAX:
            raise InvalidArgumentError("container: gradients combine by SUM or MEAN, found MAX")
        if memory_bytes is not None and memory_bytes < 1:
            raise InvalidArgumentError(
                f"container: memory_bytes must be at least 1, or None for no limit, found "
                f"{memory_bytes}"
            )
        self.memory_bytes = memory_bytes
        self._settings = JobSettings(config or {})
        self.exchange = RingExchange(
            self.collective,
            self.rendezvous.shard_map(),
            exchange,
            settings=self._describe_settings,
        )
        self.non_finite = NonFinite(non_finite)
        self.reduction = reduction
        self.counters = StepCounters()
        self.aheads = Aheads(self)
        self.saves = Saves(self)
        self.loads = Loads(self)
        self.after_step: list[Callable[[], None]] = []
        """Called on the driving thread at the end of each step, which has been applied: they must be
        quick, and must not raise."""
        self._is_closed = False

    @property
    def trace(self) -> Trace | None:
        """Where spans of this rank go; None: nowhere."""
        return self.exchange.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self.exchange.trace = trace

    def span(self, name: str) -> AbstractContextManager[None]:
        """Traces what the block does."""
        trace = self.exchange.trace
        return nullcontext() if trace is None else trace.span(name, step=self.counters.steps)

    def _describe_settings(self) -> Mapping[str, Any]:
        return self._settings.describe(
            list(self.tables.values()),
            travel_in_words(self),
            reduction=self.reduction.value,
            non_finite=self.non_finite.value,
        )

    def lookup(
        self, table: str, ids: npt.NDArray[np.int64], *, is_registered: bool = True
    ) -> Lookup:
        """Ids to the rows of a shadow. Changes no table.

        Args:
            ids: ``(n,)`` C-contiguous int64, in any order, with repeats.
            is_registered: a gradient will come: enter the lookup into the batch-inputs map.

        Raises:
            UnknownTableError: nobody declared `table`.
            InterruptedLoadError: a load into it was cut short, on this rank or another.
            InvalidArgumentError: `ids` has another shape or dtype, or the storage holds rows of
                another part of the table; on this rank or another.
        """
        return self.lookup_all([(table, ids)], is_registered=is_registered)[0]

    def lookup_all(
        self,
        requests: Sequence[tuple[str, npt.NDArray[np.int64]]],
        *,
        is_registered: bool = True,
        refusal: Exception | None = None,
    ) -> list[Lookup]:
        """As `lookup`, for several tables in one exchange between ranks.

        Args:
            requests: table and ids; the same tables in the same order on all ranks.
            is_registered: gradients will come.
            refusal: why this rank cannot, for all ranks to raise; its ids are not looked at.

        Raises:
            Exception: `refusal`, or in its place another rank's, naming that rank.
        """
        self.check_open()
        self.join_ahead()
        named, refusal = self._named(requests, refusal)
        lookups = looked_up(self, named, is_training=is_registered, refusal=refusal)
        if is_registered:
            for (table, _), each in zip(requests, lookups, strict=True):
                each.shadow_id = self.resources.register(table, each.keys, each.inverse)
        return lookups

    def look_up_ahead(
        self,
        requests: Sequence[tuple[str, npt.NDArray[np.int64]]],
        *,
        refusal: Exception | None = None,
    ) -> LookupAhead:
        """Begins a lookup on a thread beside this one; `LookupAhead.finish` gives its results.

        They are those of `lookup_all` called at that time: rows that steps changed meanwhile are
        read again. On several ranks, steps and other lookups wait until it has pulled.

        What is written to a storage by other ways than steps of this container is not noticed.

        Args:
            requests: as for `lookup_all`. Ids must not change until it is finished.
            refusal: as for `lookup_all`.

        Raises:
            UnknownTableError, InterruptedLoadError, InvalidArgumentError: as `lookup_all`; the
                latter two and `refusal`, where there are several ranks, by `LookupAhead.finish`.
        """
        self.check_open()
        self.join_ahead()
        named, refusal = self._named(requests, refusal)
        return self.aheads.begin(named, refusal)

    def _named(
        self,
        requests: Sequence[tuple[str, npt.NDArray[np.int64]]],
        refusal: Exception | None,
    ) -> tuple[list[tuple[DeclaredTable, npt.NDArray[np.int64]]], Exception | None]:
        """What is to be looked up, and why this rank cannot: other ranks must be told."""
        entries = [(self.entry(table), ids) for table, ids in requests]
        try:
            if refusal is not None:
                raise refusal
            self.loads.check()
            named = [(entry, _checked_ids(entry.config.name, ids)) for entry, ids in entries]
            for entry, _ in named:
                self.seek_rows(entry)
                entry.check_whole()
        except Exception as error:
            if self.collective.world_size == 1:
                raise
            return [(entry, np.empty(0, np.int64)) for entry, _ in entries], error
        return named, None

    def join_load(self) -> None:
        """Returns when no load runs beside this thread: rows and counters are what they are."""
        self.loads.join()

    def join_ahead(self) -> None:
        """Returns when no lookup and no load runs beside this thread, so that exchange and collective
        are free. The next lookup or step tells of a load that failed.

        Raises:
            SparringError: a lookup failed, and there are other ranks, which go on no further.
        """
        self.join_load()
        error = self.aheads.join()
        if error is not None and self.collective.world_size > 1:
            self.discard()
            raise error

    def reads_directly(self, tables: Iterable[str]) -> bool:
        """Whether batches may be pooled straight from `tables`: all rows are on this rank."""
        return self.collective.world_size == 1 or all(
            self.entry(table).config.is_replicated for table in tables
        )

    def keep_on_device(self, tables: Iterable[str], kernels: KernelSet) -> None:
        """Says that lookups and steps are to leave rows of `tables` on the device they lie on.

        All ranks say so of the same tables, before they exchange anything more, or are refused.
        On one rank gradients alone decide (`DeviceGradients`).

        Args:
            kernels: what works on rows there.

        Raises:
            UnknownTableError: nobody declared one of the tables.
            UnsupportedError: the kernels have no streams, and there are several ranks.
        """
        self.check_open()
        self.join_ahead()
        entries = [self.entry(table) for table in tables]
        if self.collective.world_size > 1:
            self.exchange.on_device(kernels)
        for entry in entries:
            entry.kernels = kernels

    def collection(self, features: Sequence[tuple[str, str]]) -> Any:
        """Features that are looked up together, in one native call for all tables.

        Args:
            features: table and pooling, ``sum`` or ``mean``, of each feature, in the order of
                their columns. All tables compute in one dtype.

        Returns:
            A native `Collection`, which reads the tables' storages of the moment. Register what it
            looked up by `ResourceManager.register_direct`, if a gradient will come.

        Raises:
            UnknownTableError: nobody declared one of the tables.
            InvalidArgumentError: no features, or tables of several dtypes.
        """
        self.check_open()
        return _native.Collection([(self.entry(table).view, mode) for table, mode in features])

    def apply(self, update: Update) -> None:
        """Applies the accumulated gradients of all tables: one step.

        All ranks call it, also those without gradients. What can be refused is refused before the
        first row changes. A step over several tables is not atomic beyond that: if a storage fails
        while it writes, by a failing disk or the end of memory, tables written before keep the
        step, and `PartialStepError` names them.

        Raises:
            NonFiniteGradientError: a gradient holds NaN or infinity and the policy is to raise. No
                row has changed; the gradients are dropped.
            CapacityError: a storage is full and may not evict. No row has changed.
            BackgroundError: work on the event loop failed; the gradients are dropped.
            DeadlineError: a stack's last tier has not taken earlier rows in time, and there is no
                room for more. No row has changed; the gradients are dropped.
            PartialStepError: a storage failed while it wrote, and other tables have changed:
                `written`, `failed` and `untouched` name them, the cause is what the storage
                raised. Where no other table has changed, that is raised itself, as
                `StorageIOError`. Of a table that failed, each key has its old or its new row. The
                gradients are dropped.
        """
        self.check_open()
        self.join_ahead()
        with self.span("apply"):
            apply_update(self, update)

    def apply_methods(self, choices: Mapping[str, MethodChoice]) -> list[str]:
        """Applies the accumulated gradients by update methods: one step, as `apply`.

        Where all rows are on this rank, built-in methods run fused: each row is found, made if it
        is new, and changed in one visit, and neither rows nor gradients are copied for it.

        Args:
            choices: of every table that has gradients.

        Returns:
            The tables that had a gradient, on any rank.

        Raises:
            InvalidArgumentError: a table with gradients has no method, or has rows of another
                width than its method wants. No row has changed.
            NonFiniteGradientError, CapacityError, PartialStepError: as `apply`.
        """
        self.check_open()
        self.join_ahead()
        with self.span("apply"):
            return apply_methods(self, choices)

    def end_step(self) -> None:
        """A step was applied; only `sparring.applying` calls it."""
        self.counters.steps += 1
        self.exchange.step = self.counters.steps
        for call in self.after_step:
            call()

    def set_steps(self, steps: int) -> None:
        """Goes on from this step; only `sparring.saving` calls it."""
        self.counters.steps = steps
        self.exchange.step = steps

    def check_readable(self, tables: Sequence[str]) -> None:
        """Returns when `tables` may be read, directly where `reads_directly`; then raises
        `ClosedError` if the container, or the storage of a table, was closed, `BackgroundError` if
        a load beside failed, and `InterruptedLoadError` if a table holds a part of a snapshot. What
        is read by way of other ranks is refused there, on all of them."""
        self.check_open()
        self.join_ahead()
        if not self.reads_directly(tables):
            return
        self.loads.check()
        for table in tables:
            entry = self.entry(table)
            self.seek_rows(entry)
            entry.check_whole()

    def discard(self) -> None:
        """Drops what was looked up and accumulated since the last step."""
        self.resources.discard()

    @contextmanager
    def step(self, update: Update) -> Iterator[Step]:
        """Drives one step by hand: applied at the end of the block, dropped if it raises.

        Use:
            with container.step(update) as step:
                found = step.lookup("user", ids)
                step.accumulate(found, gradient)
        """
        self.check_open()
        try:
            yield Step(self)
        except BaseException:
            self.discard()
            raise
        self.apply(update)

    def close(self) -> None:
        """Drains the event loop and closes storages, collective and rendezvous: all of them, whichever
        raises. The first error is raised, and the others are logged."""
        if self._is_closed:
            return
        self._is_closed = True
        entries = self.entries()
        call_each(
            [
                self.aheads.close,
                *(entry.view.close for entry in entries),
                # Before the exchange and the events: it meets other ranks.
                partial(self.loads.close, self.events.deadline_seconds),
                self.exchange.close,
                self.events.close,
                *(partial(self._close_storage, entry) for entry in reversed(entries)),
                self.collective.close,
                self.rendezvous.close,
            ]
        )

    def _close_storage(self, entry: DeclaredTable) -> None:
        if entry.storage is not None:
            self.at_work.close(entry.storage)

    def __enter__(self) -> StepContainer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.loads.stop(error)  # nobody will want its rows
        self.close()

    def check_open(self) -> None:
        """Raises `ClosedError` if the container was closed."""
        if self._is_closed:
            raise ClosedError("this StepContainer is closed; make another")


def _checked_ids(table: str, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype != np.int64:
        raise InvalidArgumentError(
            f"ids for table {table!r} must be one-dimensional int64, found "
            f"{type(ids).__name__}, shape {getattr(ids, 'shape', None)}, dtype "
            f"{getattr(ids, 'dtype', None)}; pass numpy.asarray(ids, numpy.int64)",
            table=table,
        )
    return ids
