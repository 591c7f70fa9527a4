"""`StepContainer`, the public interface of the engine.

A framework adapter drives it: the forward pass calls `lookup`, the backward pass passes gradients to
`resources.accumulate`, and the optimizer calls `apply`.

    ids → lookup: dedup, exchange, initialize → rows of a shadow
    gradient of the shadow → resources.accumulate
    apply: exchange, check, find, update in place, upsert

Only `apply` writes. It computes the new rows of all tables before it writes the first one.

The class delegates to the modules of the engine, which share one `EngineState`. Its base class
`TableContainer` declares and describes the tables. The file is long because two thirds of it are
documentation and overloads.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
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
from sparring.contracts.ranks.layout import ShardingPlan, TableSharding
from sparring.contracts.ranks.rendezvous import Rendezvous
from sparring.contracts.ranks.shard_map import ShardMap
from sparring.contracts.storage.updates import MethodChoice
from sparring.engine.apply.function import apply_update
from sparring.engine.apply.gather import Update
from sparring.engine.apply.methods import apply_methods
from sparring.engine.checkpoint.flush import flush
from sparring.engine.checkpoint.load import load
from sparring.engine.checkpoint.save import save
from sparring.engine.create_state import create_state
from sparring.engine.lookup.lookup import Lookup, look_up
from sparring.engine.lookup.prefetch import Prefetch
from sparring.engine.state import NonFinite, Purpose, quiesce
from sparring.engine.step import Step
from sparring.engine.table_container import TableContainer
from sparring.engine.tables.assign import assign
from sparring.engine.tables.entry import TableEntry
from sparring.engine.tables.expiry import note_step
from sparring.errors import SparringError, UnsupportedError
from sparring.rendezvous.environment import SingleRendezvous
from sparring.runtime.lifecycle import call_each
from sparring.runtime.pool import Task
from sparring.runtime.trace import Trace

if TYPE_CHECKING:
    from sparring.plugins.registry import PluginManager

__all__ = ["StepContainer"]

_log = logging.getLogger(__name__)


class StepContainer(TableContainer):
    """The tables of one rank, and everything that a training step needs to read and update them.

    One thread drives lookups and steps. Gradients may be accumulated from any thread.

    Args:
        collective: connection to the other ranks. None: this process is the only rank.
        rendezvous: the ranks of the job and the owner of each partition. None: this process is the only
            rank.
        non_finite_gradients: policy for gradients that contain NaN or infinity.
        reduction: how the gradients of several ranks are combined. With the mean, W ranks produce the
            rows of one process on the joined batch.
        exchange: chunk sizes and wire dtypes; the same on all ranks.
        memory_bytes: maximum memory of this rank's tables together. It is checked before each step is
            written, so one step may exceed it; all ranks reject the next step. None: no limit.
        config: the run's configuration, JSON values only. Ranks compare it at their first exchange.
        plugin_manager: finds storage backends. None: the installed plugins.
        plan: how tables are sharded: a `ShardingPlan`, or a mapping of table names to a kind or a
            `TableSharding`; the same on all ranks, which compare the layouts. Tables that are not in
            the plan are ``row_wise``.

    Raises:
        PluginError: no plugin provides a sharding kind of the plan.
        InvalidArgumentError: the plan names a rank that the job does not have, or an argument is
            invalid.

    Examples:
        >>> import numpy as np
        >>> from sparring import StepContainer, TableConfig
        >>> def sgd(updates):
        ...     for each in updates:
        ...         each.rows[:, : each.table.dim] -= 0.1 * each.gradients
        >>> with StepContainer() as container:
        ...     container.declare(TableConfig("user", dim=4))
        ...     with container.step(sgd) as step:
        ...         found = step.lookup("user", np.array([7, 7, -1]))
        ...         step.accumulate(found, np.ones_like(found.rows))
        ...     container.num_rows("user")
        2
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
        rendezvous = rendezvous or SingleRendezvous()
        if not isinstance(plan, ShardingPlan):
            plan = ShardingPlan({} if plan is None else plan)
        super().__init__(
            create_state(
                collective=collective or LocalGroup(1).join(0),
                rendezvous=rendezvous,
                non_finite=NonFinite(non_finite_gradients),
                reduction=reduction,
                exchange=exchange,
                memory_bytes=memory_bytes,
                config=config or {},
                plugin_manager=plugin_manager,
                plan=plan
                if isinstance(plan, ShardingPlan)
                else ShardingPlan({} if plan is None else plan),
            )
        )
        self.collective = self.state.collective
        self.rendezvous = rendezvous
        self.resources = self.state.resources
        self.events = self.state.events
        self.exchange = self.state.exchange
        self.counters = self.state.counters
        self.prefetches = self.state.prefetches
        self.loads = self.state.loads
        self.saves = self.state.saves
        self.after_step: list[Callable[[], None]] = self.state.after_step
        """Functions that are called on the driving thread after each applied step. They must be fast
        and must not raise."""

    @property
    def non_finite_gradients(self) -> NonFinite:
        """Policy for gradients that contain NaN or infinity."""
        return self.state.non_finite

    @non_finite_gradients.setter
    def non_finite_gradients(self, policy: NonFinite) -> None:
        self.state.non_finite = policy

    @property
    def trace(self) -> Trace | None:
        """Trace that records this rank's spans; None: tracing is off."""
        return self.exchange.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self.exchange.trace = trace

    def span(self, name: str) -> AbstractContextManager[None]:
        """Records a block as a span of the trace. Without a trace it does nothing.

        Args:
            name: name of the span.
        """
        return self.state.span(name)

    # -- lookups

    def lookup(
        self, table: str, ids: npt.NDArray[np.int64], *, is_registered: bool = True
    ) -> Lookup:
        """Looks up the embeddings of ids, as the rows of a shadow. Changes no table.

        Args:
            ids: ``(n,)`` C-contiguous int64, in any order; they may repeat.
            is_registered: whether a backward pass follows. If so, the lookup is recorded in the
                batch-inputs map.

        Raises:
            UnknownTableError: `table` was not declared.
            InterruptedLoadError: a load into the table was interrupted, on any rank.
            InvalidArgumentError: `ids` has the wrong shape or dtype, or the storage contains rows of
                another rank; on any rank.
        """
        return self.lookup_all([(table, ids)], is_registered=is_registered)[0]

    def lookup_all(
        self,
        requests: Sequence[tuple[str, npt.NDArray[np.int64]]],
        *,
        is_registered: bool = True,
        own_error: Exception | None = None,
    ) -> list[Lookup]:
        """Looks up several tables like `lookup`, in one exchange between ranks.

        Args:
            requests: table and ids; the same tables in the same order on all ranks.
            is_registered: whether a backward pass follows.
            own_error: error of this rank, which all ranks raise in place of the lookup. The ids of this
                rank are ignored.

        Raises:
            Exception: `own_error`, or the error of another rank, with that rank's number.
        """
        self.state.check_open()
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
        """Starts a lookup on the prefetch thread; `Prefetch.finish` returns its result.

        `finish` returns the rows that `lookup_all` would return at that time, because it reads rows
        again that steps have changed since the prefetch started. On several ranks, steps and other
        lookups wait until the prefetch has pulled its rows. Writes to a storage that are not steps
        of this container are not detected.

        Args:
            requests: as for `lookup_all`. The ids must not change until `finish` returns.
            own_error: as for `lookup_all`.

        Raises:
            UnknownTableError, InterruptedLoadError, InvalidArgumentError: as `lookup_all`. On
                several ranks, `Prefetch.finish` raises `InterruptedLoadError`,
                `InvalidArgumentError` and `own_error`.
        """
        return Prefetch(self.state, requests, own_error)

    def quiesce(self) -> None:
        """Waits until no prefetch or load uses the exchange and the collective. The next lookup or step
        reports the failure of a load.

        Raises:
            SparringError: a prefetch failed, and there are several ranks.
        """
        quiesce(self.state, Purpose.MEET)

    def join_load(self) -> None:
        """Waits for a load in the background, so that rows and counters are final."""
        quiesce(self.state, Purpose.INSPECT)

    def keep_on_device(self, tables: Iterable[str], kernels: KernelSet) -> None:
        """Makes lookups and steps keep the rows of `tables` on their device.

        All ranks must call it for the same tables before their next exchange, which otherwise raises.
        On one rank, the gradients determine the device (`DeviceGradients`).

        Args:
            kernels: kernels of the device.

        Raises:
            UnknownTableError: one of the tables was not declared.
            UnsupportedError: the kernels have no streams, and there are several ranks.
        """
        self.state.check_open()
        quiesce(self.state, Purpose.MEET)
        entries = [self.entry(table) for table in tables]
        if self.collective.world_size > 1:
            self.exchange.stager(kernels)
        for entry in entries:
            # Blocks of columns are joined on the host.
            entry.kernels = None if entry.has_column_blocks else kernels

    def collection(self, features: Sequence[tuple[str, str]]) -> Any:
        """Creates a native object that looks up several features in one call.

        Args:
            features: table and pooling, ``sum`` or ``mean``, of each feature, in the order of
                their columns. All tables must have the same computing dtype.

        Returns:
            A native `Collection`, which reads the current storages of the tables. If a gradient will
            follow, register its lookups with `ResourceManager.register_direct`.

        Raises:
            UnknownTableError: one of the tables was not declared.
            InvalidArgumentError: there are no features, or the tables have several dtypes.
        """
        self.state.check_open()
        return _native.Collection([(self.entry(table).view, mode) for table, mode in features])

    # -- steps

    def apply(self, update: Update, *, settings: Callable[[], Mapping[str, Any]] = dict) -> None:
        """Applies the accumulated gradients of all tables as one step.

        All ranks must call it, including those without gradients. All checks are made before the first
        row changes. Writing several tables is not atomic. If a storage fails while it writes, for
        example because a disk fails or memory is exhausted, tables that were already written keep
        the step. `PartialStepError` then names them.

        Args:
            update: changes the rows of all tables in place.
            settings: returns the settings of the update, such as a learning rate, as JSON values. It
                is called if there are several ranks, which must have the same settings.

        Raises:
            InvalidArgumentError: ranks have different settings. No row has changed; the gradients are
                dropped.
            NonFiniteGradientError: a gradient contains NaN or infinity, and the policy is to raise. No
                row has changed; the gradients are dropped.
            CapacityError: a storage is full and does not evict. No row has changed.
            BackgroundError: work on the event loop failed; the gradients are dropped.
            DeadlineError: the last tier of a stack did not accept earlier rows in time, and there is no
                space for more. No row has changed; the gradients are dropped.
            PartialStepError: a storage failed while it wrote, and other tables have changed. The
                attributes `written`, `failed` and `untouched` contain the tables; the cause is the
                error of the storage. Each key of a failed table has either its old or its new row. If
                no other table has changed, the error of the storage is raised instead. The gradients
                are dropped.
        """
        self.state.check_open()
        with self.state.span("apply"):
            apply_update(self.state, update, settings)
            if self.state.tables.expiring:
                note_step(self.state)

    def apply_methods(
        self,
        choices: Mapping[str, MethodChoice],
        *,
        settings: Callable[[], Mapping[str, Any]] | None = None,
    ) -> list[str]:
        """Applies the accumulated gradients with update methods as one step; see `apply`.

        If all rows are on this rank, built-in methods run fused. One access finds each row, creates
        it if it is new, and updates it. Rows and gradients are not copied.

        Args:
            choices: update method of every table that has gradients.
            settings: as for `apply`; None compares `choices`.

        Returns:
            The tables that had a gradient on any rank.

        Raises:
            InvalidArgumentError: a table with gradients has no method, or its rows have another width
                than the method requires, or ranks have different settings. No row has changed.
            NonFiniteGradientError, CapacityError, PartialStepError: as `apply`.
        """
        self.state.check_open()
        with self.state.span("apply"):
            touched = apply_methods(self.state, choices, settings)
            if self.state.tables.expiring:
                note_step(self.state)
            return touched

    def assign(self, table: str, keys: npt.ArrayLike, embeddings: npt.ArrayLike) -> None:
        """Writes embeddings to a table, replacing existing ones.

        The optimizer state of these rows is reset. All ranks must call it, each with any keys or none.
        If several ranks pass the same key, they must pass the same embedding. It waits for a running
        save.

        Args:
            keys: ``(n,)`` unique integers.
            embeddings: ``(n, dim)``, converted to the table's dtype.

        Raises:
            UnknownTableError: `table` was not declared.
            InvalidArgumentError: wrong shape, a repeated key, or a table with optimizer state whose
                optimizer has not been created yet.
            CapacityError: the storage is full and does not evict. Some rows may have been written.
        """
        assign(self.state, table, keys, embeddings)

    def change_owners(self, shard_map: ShardMap) -> None:
        """Changes which partitions this rank stores, for a rank without a collective
        (`IndependentRendezvous`). Moves no rows: the caller copies and erases them.

        Args:
            shard_map: the new owners, which later writes, saves and loads use; the number of ranks may
                change.

        Raises:
            UnsupportedError: other ranks take part in each step.
        """
        state = self.state
        state.check_open()
        if not self.rendezvous.is_independent:
            raise UnsupportedError(
                "change_owners: the ranks of this job take steps together, so their partitions cannot "
                "change; save, and load the snapshot with other ranks"
            )
        state.shard_map = shard_map
        state.membership = replace(state.membership, world_size=shard_map.world_size)
        state.tables.change_owners(state.membership, shard_map)

    def discard(self) -> None:
        """Drops the lookups and gradients since the last step."""
        self.resources.discard()

    @contextmanager
    def step(self, update: Update) -> Iterator[Step]:
        """Runs one step without a framework adapter, as in the example of the class. The step is applied
        at the end of the block, or dropped if the block raises.

        Args:
            update: as for `apply`.
        """
        self.state.check_open()
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
        url: str | os.PathLike[str],
        *,
        blocking: Literal[True] = True,
        base: str | os.PathLike[str] | None = None,
        states: Mapping[str, State] | None = None,
        options: SaveOptions | None = None,
    ) -> SaveResult: ...

    @overload
    def save(
        self,
        url: str | os.PathLike[str],
        *,
        blocking: Literal[False],
        base: str | os.PathLike[str] | None = None,
        states: Mapping[str, State] | None = None,
        options: SaveOptions | None = None,
    ) -> Task[SaveResult]: ...

    @overload
    def save(
        self,
        url: str | os.PathLike[str],
        *,
        blocking: bool,
        base: str | os.PathLike[str] | None = None,
        states: Mapping[str, State] | None = None,
        options: SaveOptions | None = None,
    ) -> SaveResult | Task[SaveResult]: ...

    def save(
        self,
        url: str | os.PathLike[str],
        *,
        blocking: bool = True,
        base: str | os.PathLike[str] | None = None,
        states: Mapping[str, State] | None = None,
        options: SaveOptions | None = None,
    ) -> SaveResult | Task[SaveResult]:
        """Saves a snapshot of all tables after the last step, with the given states.

        All ranks must call it after the same step with the same `url`, which all of them can access.
        Each rank writes its rows, and rank 0 commits. Writes to a storage during a save that are
        neither steps nor calls of `Storage` methods are not detected.

        Args:
            url: URL of the snapshot, for example ``runs/a/step-000000123``: a path or any fsspec URL.
            blocking: whether to return only after the commit. If False, steps continue, and rows that
                they change are copied for the save first. A failure then raises `BackgroundError` at
                the next step, which can be retried; `close` waits for the save.
            base: snapshot over which a delta is written; must be `saves.base`. If more keys changed
                than are tracked, a full snapshot is written and a warning is logged.
            states: additional states to save, by name.
            options: options of the save.

        Returns:
            A description of the snapshot; if not blocking, a task that returns it.

        Raises:
            InvalidArgumentError: changes since `base` are not tracked, or ranks passed different URLs.
            SnapshotError: the snapshot exists, or the file system failed, on any rank.
            InterruptedLoadError: a table contains a part of a snapshot, on any rank.
            DeadlineError: the previous save or another rank did not finish in time.
        """
        self.state.check_open()
        return save(
            self.state,
            os.fspath(url),
            blocking=blocking,
            base=None if base is None else os.fspath(base),
            states=states or {},
            options=options or SaveOptions(),
        )

    @overload
    def load(
        self,
        url: str | os.PathLike[str],
        *,
        blocking: Literal[True] = True,
        tables: Iterable[str] | None = None,
        is_base: bool = False,
    ) -> LoadResult: ...

    @overload
    def load(
        self,
        url: str | os.PathLike[str],
        *,
        blocking: Literal[False],
        tables: Iterable[str] | None = None,
        is_base: bool = False,
    ) -> Task[LoadResult]: ...

    def load(
        self,
        url: str | os.PathLike[str],
        *,
        blocking: bool = True,
        tables: Iterable[str] | None = None,
        is_base: bool = False,
    ) -> LoadResult | Task[LoadResult]:
        """Loads a snapshot: rows with state and scores, counters, admission filters and the step.

        All ranks must call it; their number may differ from the number at the save. Each rank reads the
        partitions that it owns. Existing rows and accumulated gradients are dropped.

        Args:
            url: URL of the snapshot.
            blocking: whether to return only after all rows were loaded. If False, the arguments are
                checked and rows are loaded on the event loop, while the caller builds models and opens
                data. Operations on rows or with the collective wait for the load; Ctrl-C stops it. A
                failure raises `BackgroundError` or `PeerFailure` at the next lookup, step, save, load
                or `close`, unless the task's `result` has raised it.
            tables: tables whose rows are loaded, without counters. None: everything.
            is_base: whether to track changed keys from now on, for a delta over this snapshot.

        Returns:
            A description of the loaded data; if not blocking, a task that returns it.

        Raises:
            InvalidArgumentError: the snapshot has other tables, or ranks passed different snapshots.
                Nothing was changed.
            SnapshotError: the snapshot does not exist or is damaged. Tables may contain parts of it;
                lookups and steps raise `InterruptedLoadError` until a snapshot is loaded. All ranks
                raise an error of one rank, with its number as the attribute `rank`.
        """
        self.state.check_open()
        return load(self.state, os.fspath(url), tables, is_base=is_base, blocking=blocking)

    @overload
    def flush(self, *, blocking: Literal[True] = True) -> None: ...

    @overload
    def flush(self, *, blocking: Literal[False]) -> Task[None]: ...

    def flush(self, *, blocking: bool = True) -> Task[None] | None:
        """Makes the rows that steps have written durable, if the storages of the tables support it.

        The flush runs on the event loop. All ranks must call it.

        Args:
            blocking: whether to wait until all ranks have flushed. If False, lookups, forward and
                backward passes continue. Operations that change rows wait for the flush; on several
                ranks they wait for at most half the collective's deadline. A failure then raises
                `BackgroundError` at the next step, which can be retried.

        Returns:
            A task, if not blocking.

        Raises:
            SparringError: a storage failed on this rank or, if blocking, on another rank. All other
                storages were flushed.
            DeadlineError: the previous flush did not finish in time.
        """
        return flush(self.state, blocking=blocking)

    def close(self) -> None:
        """Drains the event loop and closes all storages, the collective and the rendezvous. The first
        error is raised after everything was closed, and the others are logged. Does nothing in a forked
        child process, because the parent owns these objects."""
        if self.state.is_closed or not self.state.process.is_own:
            return
        self.state.is_closed = True
        entries = self.entries()
        call_each(
            [
                self.prefetches.close,
                *(entry.view.close for entry in entries),
                # Before the exchange and the events, because a load communicates with other ranks.
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
        if error is None or not self.state.process.is_own:
            self.close()
            return
        self.loads.stop(error)  # its rows are no longer needed
        self.saves.limit_waits(error, self.collective.deadline_seconds)
        try:
            self.close()
        except SparringError as failure:
            _log.warning("closing after %s failed, too: %s", type(error).__name__, failure)
