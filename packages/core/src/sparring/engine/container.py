"""The hub of a training: `StepContainer`.

In an ordinary training loop a framework adapter drives it: forward calls `lookup`, backward hands
gradients to `resources.accumulate`, the optimizer calls `apply`. It knows nothing of any framework.

    ids → lookup: dedup, exchange, initialise → rows of a shadow
    gradient of the shadow → resources.accumulate
    apply: exchange, check, find, update in place, upsert

Forward reads; only `apply` writes. It computes all tables' new rows before it writes the first.

The class makes the `EngineState` and its parts and delegates to them. It is long because it is the one
face of the engine: two thirds of the file are its documentation and the overloads of its types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.collective.local import LocalGroup
from sparring.contracts.checkpoint import LoadResult, SaveOptions, SaveResult, State
from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.ranks.collective import Collective, Reduction
from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring.contracts.ranks.layout import Layout, ShardingPlan, TableSharding, Transfer
from sparring.contracts.ranks.rendezvous import Rendezvous
from sparring.contracts.storage.storage import Storage
from sparring.contracts.storage.tiers import TierCounters
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.table import TableConfig
from sparring.engine.apply.function import apply_update
from sparring.engine.apply.gather import Update
from sparring.engine.apply.methods import apply_methods
from sparring.engine.checkpoint.flush import flush
from sparring.engine.checkpoint.flush_manager import FlushManager
from sparring.engine.checkpoint.load import load
from sparring.engine.checkpoint.load_manager import LoadManager
from sparring.engine.checkpoint.save import save
from sparring.engine.checkpoint.save_manager import SaveManager
from sparring.engine.job.fingerprint import JobFingerprint
from sparring.engine.lookup.lookup import Lookup, look_up
from sparring.engine.lookup.prefetch import Prefetch
from sparring.engine.lookup.prefetch_thread import PrefetchThread
from sparring.engine.lookup.transfer import find_transfer
from sparring.engine.optimizer_state import check_state, drop_state, set_state
from sparring.engine.resource_manager import ResourceManager
from sparring.engine.state import EngineState, NonFinite, Purpose, find_membership, quiesce
from sparring.engine.step import Step
from sparring.engine.tables.assign import assign
from sparring.engine.tables.entry import TableEntry
from sparring.engine.tables.expiry import note_step
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.engine.tables.tables import Tables
from sparring.errors import InvalidArgumentError
from sparring.exchange.ring import RingExchange
from sparring.rendezvous.environment import SingleRendezvous
from sparring.runtime.events import EventLoop
from sparring.runtime.lifecycle import call_each
from sparring.runtime.pool import Task
from sparring.runtime.trace import Trace
from sparring.storage.load import BusyStorages

if TYPE_CHECKING:
    from sparring.plugins.registry import PluginManager

__all__ = ["StepContainer"]


class StepContainer:
    """Holds what a training needs: resources, collective, rendezvous, storages, pool, events.

    One thread drives lookups and steps; gradients may come from any thread.

    Args:
        collective: this rank's place in the group; None means a world of one.
        rendezvous: who is here and who owns what; None means a world of one.
        non_finite_gradients: what to do with gradients that hold NaN or infinity.
        reduction: how gradients of several ranks combine; the mean makes W ranks equal to one
            process on the joined batch.
        exchange: how rows and gradients travel; the same on all ranks.
        memory_bytes: the most memory that the tables of this rank may hold together. It is looked
            at before each step is written, so they may be past it by what one step adds; then all
            ranks refuse the next one. None sets no limit.
        config: the run's configuration, JSON values only: ranks compare it when they begin.
        plugin_manager: where storage backends are looked up; None looks through the installed
            plugins.
        plan: how tables are sharded: a `ShardingPlan`, or table → kind or `TableSharding`; the same
            on all ranks, which compare the layouts. Tables that it does not name are ``row_wise``.

    Raises:
        PluginError: the plan names a sharding kind that no plugin offers.
        InvalidArgumentError: it names a rank that the job does not have; an argument is wrong.
    """

    def __init__(  # noqa: PLR0913 - each is a part of the job, by keyword
        self,
        *,
        collective: Collective | None = None,
        rendezvous: Rendezvous | None = None,
        non_finite_gradients: NonFinite | str = NonFinite.RAISE,
        reduction: Reduction = Reduction.MEAN,
        exchange: ExchangeOptions | None = None,
        memory_bytes: int | None = None,
        config: Mapping[str, Any] | None = None,
        plugin_manager: PluginManager | None = None,
        plan: ShardingPlan | Mapping[str, TableSharding | str] | None = None,
    ) -> None:
        collective = collective or LocalGroup(1).join(0)
        rendezvous = rendezvous or SingleRendezvous()
        shards = rendezvous.shard_map()
        membership = find_membership(collective, rendezvous)
        if reduction is Reduction.MAX:
            raise InvalidArgumentError("container: gradients combine by SUM or MEAN, found MAX")
        if memory_bytes is not None and memory_bytes < 1:
            raise InvalidArgumentError(
                f"container: memory_bytes must be at least 1, or None for no limit, found "
                f"{memory_bytes}"
            )
        resources, events, at_work = ResourceManager(), EventLoop(), BusyStorages()
        # Others are told in time that this rank cannot go on.
        max_seconds = collective.deadline_seconds / 2 if collective.world_size > 1 else None
        fingerprint = JobFingerprint(config or {})
        if not isinstance(plan, ShardingPlan):
            plan = ShardingPlan({} if plan is None else plan)
        tables = Tables(membership, rendezvous, resources, events, plugin_manager, plan)
        self.state = EngineState(
            collective=collective,
            membership=membership,
            shard_map=shards,
            exchange=RingExchange(
                collective,
                shards,
                exchange,
                settings=lambda: fingerprint.describe(self.state),
                layout_of=tables.layout_of,
            ),
            tables=tables,
            resources=resources,
            events=events,
            at_work=at_work,
            prefetches=PrefetchThread(),
            loads=LoadManager(),
            saves=SaveManager(events),
            flushes=FlushManager(events, at_work, max_seconds),
            reduction=reduction,
            non_finite=NonFinite(non_finite_gradients),
            memory_bytes=memory_bytes,
        )
        """Shared with the parts of the engine, and with functions of `sparring.adapter`."""
        self.collective = collective
        self.rendezvous = rendezvous
        self.resources = resources
        self.events = events
        self.exchange = self.state.exchange
        self.counters = self.state.counters
        self.prefetches = self.state.prefetches
        self.loads = self.state.loads
        self.saves = self.state.saves
        self.after_step: list[Callable[[], None]] = self.state.after_step
        """Called on the driving thread at the end of each step, which has been applied: they must be
        quick, and must not raise."""

    @property
    def non_finite_gradients(self) -> NonFinite:
        """Policy for gradients that hold NaN or infinity."""
        return self.state.non_finite

    @non_finite_gradients.setter
    def non_finite_gradients(self, policy: NonFinite) -> None:
        self.state.non_finite = policy

    @property
    def trace(self) -> Trace | None:
        """Where spans of this rank go; None: nowhere."""
        return self.exchange.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self.exchange.trace = trace

    def span(self, name: str) -> AbstractContextManager[None]:
        """Traces the block."""
        return self.state.span(name)

    # -- tables

    @property
    def own_device(self) -> str | None:
        """Which GPU ``cuda`` means on this rank: that of its number on this machine, or the only
        one that this process sees. None on a single rank, where it means the one that is current."""
        return self.state.tables.own_device

    def declare(self, table: TableConfig, storage: StorageChoice | Storage | None = None) -> None:
        """Adds a table. Its storage is opened when the first row may be written, because only
        the optimizer knows how wide rows are.

        Args:
            table: what its rows are. Declaring an equal table again does nothing.
            storage: which backend to open, or an open storage that then belongs to the container;
                None: ``hkv`` with its defaults, or what an earlier declaration said.

        Raises:
            InvalidArgumentError: another table of this name exists, or it was declared with
                another storage, or `storage` is for another.
        """
        self.check_open()
        self.state.tables.declare(table, storage)

    @property
    def tables(self) -> Mapping[str, TableConfig]:
        """The declared tables by name."""
        return {name: entry.config for name, entry in list(self.state.tables.declared.items())}

    def layout(self, table: str) -> Layout:
        """Which ranks own the rows of a table.

        Raises:
            UnknownTableError: `table` was not declared.
        """
        return self.entry(table).layout

    def transfer(self, table: str) -> tuple[Transfer, str]:
        """How bags of a table travel: ``pooled`` by the owners of their rows, or by rows; and why."""
        return find_transfer(self.state, table)

    def check_plan(self) -> None:
        """Refuses a plan for tables that were not declared, as the first write does.

        Raises:
            InvalidArgumentError: naming the first such table.
        """
        self.state.tables.layouts.check_tables(list(self.tables))

    def set_state(self, table: str, initial_state: npt.NDArray[Any], method: str = "") -> None:
        """Sets the optimizer state that is stored behind each embedding of `table`.

        Args:
            initial_state: ``(state_width,)`` of the computing dtype: the state of a new row.
            method: whose state it is: an update method, or an optimizer of a framework.

        Raises:
            InvalidArgumentError: the table has rows of another width, or another method's rows.
        """
        self.check_open()
        quiesce(self.state, Purpose.RESHAPE)
        set_state(self.state, self.entry(table), np.asarray(initial_state), method)

    def check_state(self, table: str, state_width: int, method: str = "") -> None:
        """Raises what `set_state` would raise; sets nothing."""
        self.check_open()
        check_state(self.entry(table), state_width, method)

    def drop_state(self, table: str) -> None:
        """Takes the optimizer's state off all rows of a table on this rank; embeddings stay.

        The next optimizer starts from its own initial state.

        Raises:
            UnsupportedError: the storage was given open, or outlives the process; for the latter
                the message has the ``sparring convert`` command to run.
        """
        self.check_open()
        quiesce(self.state, Purpose.RESHAPE)
        drop_state(self.state, self.entry(table))

    def storage(self, table: str) -> Storage:
        """This rank's shard of a table, opened if it was not.

        Raises:
            InterruptedLoadError: it holds a part of a snapshot, as a load was cut short.
            InvalidArgumentError: it holds rows that another rank kept.
        """
        self.check_open()
        quiesce(self.state, Purpose.INSPECT)
        return self.state.tables.storage(table)

    def num_rows(self, table: str) -> int:
        """Rows of a table on this rank; where columns are divided, those of its first block."""
        self.check_open()
        quiesce(self.state, Purpose.COUNT)
        entry = self.entry(table).parts[0]
        self.state.tables.probe_existing_rows(entry)
        return 0 if entry.storage is None else entry.storage.size

    def table_bytes(self, table: str) -> int:
        """Memory that a table holds on this rank."""
        self.check_open()
        quiesce(self.state, Purpose.INSPECT)
        storages = [part.storage for part in self.entry(table).parts]
        return sum(each.memory_bytes for each in storages if each is not None)

    def num_not_admitted(self, table: str) -> int:
        """Gradients that the table's admission filter dropped on this rank."""
        quiesce(self.state, Purpose.INSPECT)
        return self.entry(table).parts[0].num_not_admitted

    def num_forgotten(self, table: str) -> int:
        """Ids that the table's admission filter no longer counts on this rank, for want of room."""
        quiesce(self.state, Purpose.INSPECT)
        made = self.entry(table).parts[0].admission_filter
        return 0 if made is None else int(made.num_forgotten)

    def tier_counters(self, table: str) -> list[TierCounters]:
        """Counters of each tier of a table on this rank, hottest first; none for a table that is in
        no stack of storages."""
        self.check_open()
        quiesce(self.state, Purpose.INSPECT)
        return self.state.tables.tier_counters(table)

    def tiers(self, table: str) -> list[StorageChoice]:
        """The storages that were chosen for a table: those of a stack, hottest first; none if its storage
        was given open."""
        return self.state.tables.tiers(table)

    def entry(self, table: str) -> TableEntry:
        """A declared table; raises `UnknownTableError`."""
        return self.state.tables.entry(table)

    def entries(self) -> list[TableEntry]:
        """All that have rows: tables, or the blocks of columns of those that are divided."""
        return list(self.state.tables.entries.values())

    # -- lookups

    def lookup(
        self, table: str, ids: npt.NDArray[np.int64], *, is_registered: bool = True
    ) -> Lookup:
        """Ids to the rows of a shadow. Changes no table.

        Args:
            ids: ``(n,)`` C-contiguous int64, in any order, with repeats.
            is_registered: a gradient will come: enter the lookup into the batch-inputs map.

        Raises:
            UnknownTableError: `table` was not declared.
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
        own_error: Exception | None = None,
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
        lookups = look_up(self.state, requests, is_training=is_registered, own_error=own_error)
        if is_registered:
            for (table, _), each in zip(requests, lookups, strict=True):
                each.shadow_id = self.resources.register(table, each.keys, each.inverse)
        return lookups

    def prefetch(
        self,
        requests: Sequence[tuple[str, npt.NDArray[np.int64]]],
        *,
        own_error: Exception | None = None,
    ) -> Prefetch:
        """Begins a lookup on the prefetch thread; `Prefetch.finish` gives its results.

        They are those of `lookup_all` called at that time: rows that steps changed meanwhile are
        read again. On several ranks, steps and other lookups wait until it has pulled.

        Writes to a storage other than by steps of this container are not noticed.

        Args:
            requests: as for `lookup_all`. Ids must not change until it is finished.
            refusal: as for `lookup_all`.

        Raises:
            UnknownTableError, InterruptedLoadError, InvalidArgumentError: as `lookup_all`; the
                latter two and `refusal`, where there are several ranks, by `Prefetch.finish`.
        """
        self.check_open()
        return Prefetch(self.state, requests, own_error)

    def quiesce(self) -> None:
        """Returns when no prefetch and no load runs in the background, so that exchange and collective
        are free. The next lookup or step tells of a load that failed.

        Raises:
            SparringError: a prefetch failed, and there are other ranks, which go on no further.
        """
        quiesce(self.state, Purpose.MEET)

    def join_load(self) -> None:
        """Returns when no load runs in the background: rows and counters are what they are."""
        quiesce(self.state, Purpose.INSPECT)

    def check_readable(self, tables: Sequence[str]) -> None:
        """Returns when `tables` may be read, directly where `reads_directly`; then raises
        `ClosedError` if the container, or the storage of a table, was closed, `BackgroundError` if
        a load in the background failed, and `InterruptedLoadError` if a table holds a part of a
        snapshot. Reads via other ranks are refused there, on all of them."""
        state = self.state
        state.check_open()
        if not self.reads_directly(tables):
            quiesce(state, Purpose.MEET)
            return
        quiesce(state, Purpose.READ)
        for table in tables:
            entry = state.tables.declared.get(table) or state.tables.entry(table)
            state.tables.check_readable(entry)

    def reads_directly(self, tables: Iterable[str]) -> bool:
        """Whether batches may be pooled straight from `tables`: all rows are on this rank."""
        return self.collective.world_size == 1 or all(
            self.entry(table).config.is_replicated for table in tables
        )

    def keep_on_device(self, tables: Iterable[str], kernels: KernelSet) -> None:
        """Says that lookups and steps are to leave rows of `tables` on the device that holds them.

        All ranks say so of the same tables, before they exchange anything more, or are refused.
        On one rank gradients alone decide (`DeviceGradients`).

        Args:
            kernels: what works on rows there.

        Raises:
            UnknownTableError: one of the tables was not declared.
            UnsupportedError: the kernels have no streams, and there are several ranks.
        """
        self.check_open()
        quiesce(self.state, Purpose.MEET)
        entries = [self.entry(table) for table in tables]
        if self.collective.world_size > 1:
            self.exchange.stager(kernels)
        for entry in entries:
            entry.kernels = None if entry.has_column_blocks else kernels  # blocks join on the host

    def collection(self, features: Sequence[tuple[str, str]]) -> Any:
        """Features that are looked up together, in one native call for all tables.

        Args:
            features: table and pooling, ``sum`` or ``mean``, of each feature, in the order of
                their columns. All tables compute in one dtype.

        Returns:
            A native `Collection`, which reads the tables' storages of the moment. Register what it
            looked up by `ResourceManager.register_direct`, if a gradient will come.

        Raises:
            UnknownTableError: one of the tables was not declared.
            InvalidArgumentError: no features, or tables of several dtypes.
        """
        self.check_open()
        return _native.Collection([(self.entry(table).view, mode) for table, mode in features])

    # -- steps

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
        self.state.check_open()
        with self.state.span("apply"):
            apply_update(self.state, update)
            if self.state.tables.expiring:
                note_step(self.state)

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
        self.state.check_open()
        with self.state.span("apply"):
            touched = apply_methods(self.state, choices)
            if self.state.tables.expiring:
                note_step(self.state)
            return touched

    def assign(self, table: str, keys: npt.ArrayLike, embeddings: npt.ArrayLike) -> None:
        """Writes embeddings to a table, in place of those that its keys have.

        The optimizer's state of these rows begins again. All ranks call it, each with rows of any keys
        or of none; where several give one key, they give one embedding. It waits for a running save.

        Args:
            keys: ``(n,)`` whole numbers, each once.
            embeddings: ``(n, dim)``, converted to the table's dtype.

        Raises:
            UnknownTableError: `table` was not declared.
            InvalidArgumentError: a wrong shape, a key that is given twice, or rows with state of an
                optimizer that was not made yet.
            CapacityError: the storage is full and may not evict: some rows may be written.
        """
        assign(self.state, table, keys, embeddings)

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
            yield Step(self.lookup_all, self.resources)
        except BaseException:
            self.discard()
            raise
        self.apply(update)

    # -- snapshots

    @overload
    def save(
        self,
        url: str,
        *,
        blocking: Literal[True] = True,
        base: str | None = None,
        states: Mapping[str, State] | None = None,
        options: SaveOptions | None = None,
    ) -> SaveResult: ...

    @overload
    def save(
        self,
        url: str,
        *,
        blocking: Literal[False],
        base: str | None = None,
        states: Mapping[str, State] | None = None,
        options: SaveOptions | None = None,
    ) -> Task[SaveResult]: ...

    @overload
    def save(
        self,
        url: str,
        *,
        blocking: bool,
        base: str | None = None,
        states: Mapping[str, State] | None = None,
        options: SaveOptions | None = None,
    ) -> SaveResult | Task[SaveResult]: ...

    def save(
        self,
        url: str,
        *,
        blocking: bool = True,
        base: str | None = None,
        states: Mapping[str, State] | None = None,
        options: SaveOptions | None = None,
    ) -> SaveResult | Task[SaveResult]:
        """Saves all tables as they are after the last step, and what else a training needs.

        All ranks call it after the same step with the same `url`, which they all reach; each writes
        its own rows, and rank 0 commits. Other ways of writing to a storage than steps and the
        methods of `Storage` are not noticed while a save runs.

        Args:
            url: of the snapshot itself, as ``runs/a/step-000000123``: a path, or any URL of fsspec.
            blocking: return when it is committed. Otherwise steps go on meanwhile: rows that they
                change are kept for the save first. A failure then raises `BackgroundError` at the
                next step, which can be taken again; `close` waits for the save.
            base: write a delta over this snapshot, which must be `saves.base`. Where more changed
                than is counted, a full snapshot is written, and a warning logged.
            states: by name, what else is to be saved.
            options: how.

        Returns:
            What was saved; if not blocking, a task that gives it.

        Raises:
            InvalidArgumentError: a base since which changes are not counted, or ranks were given
                different URLs.
            SnapshotError: it exists already, or the file system failed, here or on another rank.
            InterruptedLoadError: a table holds a part of a snapshot, here or on another rank.
            DeadlineError: the save before it, or another rank, does not come to an end.
        """
        self.check_open()
        return save(
            self.state,
            url,
            blocking=blocking,
            base=base,
            states=states or {},
            options=options or SaveOptions(),
        )

    @overload
    def load(
        self,
        url: str,
        *,
        blocking: Literal[True] = True,
        tables: Iterable[str] | None = None,
        is_base: bool = False,
    ) -> LoadResult: ...

    @overload
    def load(
        self,
        url: str,
        *,
        blocking: Literal[False],
        tables: Iterable[str] | None = None,
        is_base: bool = False,
    ) -> Task[LoadResult]: ...

    def load(
        self,
        url: str,
        *,
        blocking: bool = True,
        tables: Iterable[str] | None = None,
        is_base: bool = False,
    ) -> LoadResult | Task[LoadResult]:
        """Takes over a snapshot: rows, with state and scores, counters, admission, steps.

        All ranks call it, as many as there are now; each reads the partitions that it owns. What
        tables held before is lost. What was accumulated for the next step is dropped.

        Args:
            url: of the snapshot.
            blocking: return when all is there. Otherwise only what can be refused at once is, and
                rows come in on the event loop, while models are built and data opened. Whatever
                reads, changes or counts rows, or meets other ranks, waits for the end, as long as
                it takes; Ctrl-C in such a wait stops the load. A failure raises `BackgroundError`,
                or `PeerFailure` as it is, at the next lookup, step, save, load or `close`, unless
                the task's `result` has raised it.
            tables: load the rows of these only, and no counters; None: everything.
            is_base: count from now on which keys change, for a delta over this snapshot.

        Returns:
            What was loaded; if not blocking, a task that gives it.

        Raises:
            InvalidArgumentError: the snapshot has other tables, or ranks were given different
                snapshots. Nothing was changed.
            SnapshotError: there is no such snapshot, or it is damaged: tables may hold parts of it
                then, and `InterruptedLoadError` refuses lookups and steps until one was loaded.
                What goes wrong on one rank is raised on all, in its class, with the name of the
                rank as `rank`.
        """
        self.check_open()
        return load(self.state, url, tables, is_base=is_base, blocking=blocking)

    @overload
    def flush(self, *, blocking: Literal[True] = True) -> None: ...

    @overload
    def flush(self, *, blocking: Literal[False]) -> Task[None]: ...

    def flush(self, *, blocking: bool = True) -> Task[None] | None:
        """Makes what steps have written as durable as the storages of the tables can.

        It runs on the event loop. All ranks call it.

        Args:
            blocking: return when that is so, on all ranks, however long it takes. Otherwise lookups,
                forward and backward passes go on meanwhile, and whatever changes rows waits for it,
                on several ranks for half the collective's deadline. A failure then raises
                `BackgroundError` at the next step, which can be taken again.

        Returns:
            A task, if not blocking.

        Raises:
            SparringError: a storage failed, here or, if blocking, on another rank. All others were
                flushed.
            DeadlineError: the flush before it does not end.
        """
        return flush(self.state, blocking=blocking)

    def close(self) -> None:
        """Drains the event loop and closes storages, collective and rendezvous: all of them, whichever
        raises. The first error is raised, and the others are logged. Does nothing in a forked child,
        where all of these belong to the parent."""
        if self.state.is_closed or not self.state.process.is_own:
            return
        self.state.is_closed = True
        entries = self.entries()
        call_each(
            [
                self.prefetches.close,
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

    def _close_storage(self, entry: TableEntry) -> None:
        if entry.storage is not None:
            self.state.at_work.close(entry.storage)

    def __enter__(self) -> StepContainer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self.state.process.is_own:
            self.loads.stop(error)  # its rows are not wanted any more
        self.close()

    def check_open(self) -> None:
        """Raises `ClosedError` if the container was closed, or this is a process forked since."""
        self.state.check_open()
