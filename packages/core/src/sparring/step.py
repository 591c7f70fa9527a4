"""The hub of a training: `StepContainer`, and `Step` to drive it by hand.

In an ordinary training loop a framework adapter drives it: forward calls `lookup`, backward hands
gradients to `resources.accumulate`, the optimizer calls `apply`. It knows nothing of any framework.

    ids → lookup: dedup, exchange, initialise → rows of a shadow
    gradient of the shadow → resources.accumulate
    apply: exchange, check, find, update in place, upsert

Forward reads; only `apply` writes. It computes all tables' new rows before it writes the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from sparring import _native, kernels
from sparring.collective import Collective, LocalGroup, Reduction
from sparring.errors import (
    CapacityError,
    ClosedError,
    InvalidArgumentError,
    NonFiniteGradientError,
    UnknownTableError,
)
from sparring.events import EventLoop
from sparring.exchange import RingExchange
from sparring.rendezvous import Rendezvous, SingleRendezvous
from sparring.resources import Accumulated, ResourceManager
from sparring.storage.contract import Columns, Keys, Rows, Storage
from sparring.storage.opening import open_storage
from sparring.table import TableConfig

if TYPE_CHECKING:
    from sparring.plugins import PluginManager

__all__ = [
    "Lookup",
    "NonFinite",
    "Step",
    "StepContainer",
    "StepCounters",
    "StorageChoice",
    "TableUpdate",
    "Update",
]


class NonFinite(Enum):
    """What `apply` does with gradients that hold NaN or infinity."""

    RAISE = "raise"
    """Raise before any row changes; the step's gradients are dropped."""
    SKIP = "skip"
    """Leave the rows concerned as they are, count them, and update the others."""


@dataclass(frozen=True, slots=True)
class StorageChoice:
    """Which backend holds a table's rows, and its options."""

    backend: str = "hkv"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Lookup:
    """Ids turned into the rows of a shadow."""

    keys: Keys
    """``(u,)`` in order of first occurrence."""
    inverse: npt.NDArray[np.int64]
    """``(n,)``: the row of each id."""
    rows: Rows
    """``(u, dim)``: the caller's own; storages hold other memory."""
    shadow_id: int | None
    """Under which to hand in a gradient; None where nothing was registered."""


@dataclass(slots=True)
class TableUpdate:
    """What an update method gets for one table: it changes `rows` in place."""

    table: TableConfig
    keys: Keys
    """``(u,)``"""
    rows: Rows
    """``(u, width)``: embedding, then state."""
    gradients: Rows
    """``(u, dim)``"""


class Update(Protocol):
    """An update method: changes the rows of all updates in place, in one call for a step."""

    def __call__(self, updates: Sequence[TableUpdate], /) -> None: ...


@dataclass(slots=True)
class StepCounters:
    """What happened since the container was made."""

    steps: int = 0
    rows_updated: int = 0
    rows_evicted: int = 0
    rows_skipped_non_finite: int = 0


class _Table:
    """A declared table and, once rows may be written, its storage."""

    __slots__ = (
        "choice",
        "config",
        "embedding",
        "initial_state",
        "initializer",
        "storage",
        "view",
        "whole",
    )

    def __init__(
        self, config: TableConfig, choice: StorageChoice | None, storage: Storage | None
    ) -> None:
        self.config = config
        self.choice = choice
        self.storage = storage
        self.initial_state: npt.NDArray[Any] | None = None
        self.initializer = kernels.initializer_spec(config)
        self.view = _native.TableView(config.dtype, self.initializer)
        self.embedding = Columns(0, config.dim)
        self.whole = Columns(0, config.width)
        self.hold(storage)

    def hold(self, storage: Storage | None) -> None:
        """Reads from `storage` from now on, natively too; None: no key has a row."""
        self.storage = storage
        if storage is None:
            self.view.detach()
        else:
            self.view.attach(storage.__sparring_storage__(), storage.table.state_width)


class StepContainer:
    """Holds what a training needs: resources, collective, rendezvous, storages, pool, events.

    One thread drives lookups and steps; gradients may come from any thread.

    Args:
        collective: this rank's place in the group; None means a world of one.
        rendezvous: who is here and who owns what; None means a world of one.
        non_finite: what to do with gradients that hold NaN or infinity.
        reduction: how gradients of several ranks combine; the mean makes W ranks equal to one
            process on the joined batch.
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
        plugin_manager: PluginManager | None = None,
    ) -> None:
        self.rendezvous = rendezvous or SingleRendezvous()
        self.collective = collective or LocalGroup(1).join(0)
        shard_map = self.rendezvous.shard_map()
        if shard_map.world_size != self.collective.world_size:
            raise InvalidArgumentError(
                f"container: the rendezvous knows {shard_map.world_size} ranks, the collective "
                f"{self.collective.world_size}; both must come from one job"
            )
        if reduction is Reduction.MAX:
            raise InvalidArgumentError("container: gradients combine by SUM or MEAN, found MAX")
        self.exchange = RingExchange(self.collective, shard_map)
        self.resources = ResourceManager()
        self.events = EventLoop()
        self.non_finite = NonFinite(non_finite)
        self.reduction = reduction
        self._plugin_manager = plugin_manager
        self.counters = StepCounters()
        self._tables: dict[str, _Table] = {}
        self._is_closed = False

    # -- tables -----------------------------------------------------------------

    def declare(self, table: TableConfig, storage: StorageChoice | Storage | None = None) -> None:
        """Adds a table. Its storage is opened when the first row may be written, because only
        the optimizer knows how wide rows are.

        Args:
            table: what its rows are. Declaring an equal table again does nothing.
            storage: which backend to open, or an open storage that then belongs to the container.

        Raises:
            InvalidArgumentError: another table of this name exists, or `storage` is for another.
        """
        self._check_open()
        known = self._tables.get(table.name)
        if known is not None:
            if known.config.with_state(0) == table.with_state(0):
                return
            raise InvalidArgumentError(
                f"table {table.name!r} is declared already, otherwise: {known.config} and {table}; "
                "give one of them another name",
                table=table.name,
            )
        if isinstance(storage, Storage):
            if storage.table != table:
                raise InvalidArgumentError(
                    f"table {table.name!r}: the storage given was opened for {storage.table}, not "
                    f"for {table}",
                    table=table.name,
                )
            entry = _Table(table, None, storage)
        else:
            entry = _Table(table, storage or StorageChoice(), None)
        self._tables[table.name] = entry
        self.resources.declare(table, entry.view)

    @property
    def tables(self) -> Mapping[str, TableConfig]:
        """The declared tables by name."""
        return {name: entry.config for name, entry in self._tables.items()}

    def set_state(self, table: str, initial_state: npt.NDArray[Any]) -> None:
        """Says what optimizer state lies behind each embedding of `table`.

        Args:
            initial_state: ``(state_width,)`` of the table's dtype: the state of a new row.

        Raises:
            InvalidArgumentError: the table has rows of another width already.
        """
        entry = self._entry(table)
        config = entry.config.with_state(len(initial_state))
        if entry.storage is not None and entry.storage.table.width != config.width:
            if entry.choice is None:
                raise InvalidArgumentError(
                    f"table {table!r}: the storage given has {entry.storage.table.state_width} "
                    f"elements of state, the optimizer needs {config.state_width}; open it for "
                    f"TableConfig.with_state({config.state_width})",
                    table=table,
                )
            if entry.storage.size:
                raise InvalidArgumentError(
                    f"table {table!r} holds {entry.storage.size} rows with "
                    f"{entry.storage.table.state_width} elements of state, the optimizer needs "
                    f"{config.state_width}; use the same kind of optimizer, or clear the table",
                    table=table,
                )
            entry.storage.close()
            entry.hold(None)
        entry.config = config
        entry.whole = Columns(0, config.width)
        entry.initial_state = np.array(initial_state, config.numpy_dtype)

    def storage(self, table: str) -> Storage:
        """This rank's shard of a table, opened if it was not."""
        self._check_open()
        entry = self._entry(table)
        if entry.storage is None:
            assert entry.choice is not None  # a storage that was given is never dropped
            entry.hold(
                open_storage(
                    entry.choice.backend,
                    entry.config,
                    validate=False,
                    plugin_manager=self._plugin_manager,
                    **entry.choice.options,
                )
            )
        assert entry.storage is not None
        return entry.storage

    def num_rows(self, table: str) -> int:
        """Rows of a table on this rank."""
        entry = self._entry(table)
        return 0 if entry.storage is None else entry.storage.size

    # -- the life of a batch ------------------------------------------------------

    def lookup(
        self, table: str, ids: npt.NDArray[np.int64], *, is_registered: bool = True
    ) -> Lookup:
        """Ids to the rows of a shadow. Changes no table.

        Args:
            ids: ``(n,)`` C-contiguous int64, in any order, with repeats.
            is_registered: a gradient will come: enter the lookup into the batch-inputs map.

        Raises:
            UnknownTableError: nobody declared `table`.
            InvalidArgumentError: `ids` has another shape or dtype.
        """
        entry = self._entry(table)
        if ids.ndim != 1 or ids.dtype != np.int64:
            raise InvalidArgumentError(
                f"ids for table {table!r} must be one-dimensional int64, found shape {ids.shape} "
                f"and dtype {ids.dtype}",
                table=table,
            )
        keys, inverse = _native.dedup(ids)
        pulled = self.exchange.pull(entry.storage, entry.config, keys, entry.embedding)
        _native.initialize(pulled.rows, keys, pulled.found, entry.initializer, None)
        shadow_id = self.resources.register(table, keys, inverse) if is_registered else None
        return Lookup(keys, inverse, pulled.rows, shadow_id)

    @property
    def reads_directly(self) -> bool:
        """Whether batches may be pooled straight from the tables: all rows are on this rank."""
        return self.collective.world_size == 1

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
        return _native.Collection([(self._entry(table).view, mode) for table, mode in features])

    def apply(self, update: Update) -> None:
        """Applies the accumulated gradients of all tables: one step, whole or not at all.

        All ranks call it, also those without gradients.

        Raises:
            NonFiniteGradientError: a gradient holds NaN or infinity and the policy is to raise. No
                row has changed; the gradients are dropped.
            CapacityError: a storage is full and may not evict. No row has changed.
        """
        self._check_open()
        self.events.check()
        taken = {name: self.resources.take(name) for name in self._tables}
        self.resources.end_step()
        finite = self._only_finite(taken)
        updates = [
            prepared
            for name, accumulated in finite.items()
            if (prepared := self._prepare(name, accumulated)) is not None
        ]
        update(updates)
        for prepared in updates:
            storage = self.storage(prepared.table.name)
            evicted = storage._upsert_impl(prepared.keys, prepared.rows, None)
            self.counters.rows_evicted += len(evicted)
            self.counters.rows_updated += len(prepared.keys)
        self.counters.steps += 1

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
        self._check_open()
        try:
            yield Step(self)
        except BaseException:
            self.discard()
            raise
        self.apply(update)

    def close(self) -> None:
        """Drains the event loop and closes storages, collective and rendezvous."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.events.close()
        finally:
            for entry in self._tables.values():
                storage = entry.storage
                if storage is not None:
                    entry.view.detach()
                    storage.close()
            self.collective.close()
            self.rendezvous.close()

    def __enter__(self) -> StepContainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- parts of apply -------------------------------------------------------------

    def _only_finite(self, taken: dict[str, Accumulated]) -> dict[str, Accumulated]:
        broken = {
            name: accumulated
            for name, accumulated in taken.items()
            if not _native.is_finite(accumulated.gradients)
        }
        if self.non_finite is NonFinite.RAISE:
            # All ranks must agree to give up the step, or the others would wait in the exchange.
            if self._any_rank(bool(broken)):
                raise self._non_finite_error(broken)
            return taken
        for name, accumulated in broken.items():
            is_good = kernels.finite_rows(accumulated.gradients)
            self.counters.rows_skipped_non_finite += int(np.count_nonzero(~is_good))
            taken[name] = Accumulated(accumulated.keys[is_good], accumulated.gradients[is_good])
        return taken

    def _any_rank(self, here: bool) -> bool:
        if self.collective.world_size == 1:
            return here
        flags = self.collective.all_reduce(np.array([here], np.int64), Reduction.MAX)
        return bool(flags[0])

    def _non_finite_error(self, broken: dict[str, Accumulated]) -> NonFiniteGradientError:
        step = self.counters.steps
        for name, accumulated in broken.items():
            is_good = kernels.finite_rows(accumulated.gradients)
            key = int(accumulated.keys[np.argmin(is_good)])
            return NonFiniteGradientError(
                f"step {step}: the gradients of table {name!r} hold NaN or infinity for "
                f"{int(np.count_nonzero(~is_good))} of {len(is_good)} keys, key {key} among them; no "
                "row was changed. Lower the learning rate, clip gradients, or choose "
                "non_finite='skip'",
                table=name,
                key=key,
                step=step,
            )
        return NonFiniteGradientError(
            f"step {step}: the gradients of another rank hold NaN or infinity; no row was changed",
            step=step,
        )

    def _prepare(self, name: str, accumulated: Accumulated) -> TableUpdate | None:
        """Gradients to their owner, and the rows they will change."""
        entry = self._tables[name]
        owned = self.exchange.push(
            entry.config,
            accumulated.keys,
            accumulated.gradients,
            lambda: self.resources.make_accumulator(entry.config),
        )
        count = len(owned.keys)
        if not count:
            return None
        gradients = owned.gradients
        if self.reduction is Reduction.MEAN and self.collective.world_size > 1:
            gradients = gradients / self.collective.world_size
        storage = self.storage(name)
        rows = np.empty((count, entry.config.width), entry.config.numpy_dtype)
        found = np.empty(count, np.bool_)
        storage._find_impl(owned.keys, entry.whole, rows, found)
        _check_room(storage, int(count - np.count_nonzero(found)))
        _native.initialize(rows, owned.keys, found, entry.initializer, entry.initial_state)
        return TableUpdate(entry.config, owned.keys, rows, gradients)

    def _entry(self, table: str) -> _Table:
        entry = self._tables.get(table)
        if entry is None:
            raise UnknownTableError(
                f"table {table!r} was not declared; declared are "
                f"{', '.join(self._tables) or 'none'}",
                table=table,
            )
        return entry

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("this StepContainer is closed; make another")


class Step:
    """One step driven by hand; see `StepContainer.step`."""

    def __init__(self, container: StepContainer) -> None:
        self._container = container

    def lookup(self, table: str, ids: npt.ArrayLike) -> Lookup:
        """Ids to the rows of a shadow: ``rows[inverse]`` are the embeddings of the ids."""
        return self._container.lookup(table, np.ascontiguousarray(ids))

    def accumulate(self, lookup: Lookup, gradient: npt.ArrayLike) -> None:
        """Adds the gradient of a lookup's rows, ``(u, dim)``."""
        if lookup.shadow_id is None:
            raise InvalidArgumentError("this lookup was not registered, so it takes no gradient")
        self._container.resources.accumulate(
            lookup.shadow_id, np.ascontiguousarray(gradient, lookup.rows.dtype)
        )


def _check_room(storage: Storage, num_new: int) -> None:
    """Refuses a step before its first write where a later write would be refused."""
    if storage.capabilities.evicts or storage.capacity is None:
        return
    size = storage.size
    if size + num_new > storage.capacity:
        raise CapacityError(
            f"table {storage.table.name!r} holds {size} rows and may hold {storage.capacity}; this "
            f"step would add {num_new}. No row was changed. Raise its capacity, or choose a policy "
            "that evicts",
            table=storage.table.name,
            capacity=storage.capacity,
        )
