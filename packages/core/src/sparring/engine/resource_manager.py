"""Batch inputs and gradients of one step, from the forward pass to the update.

The forward pass registers each lookup in the batch-inputs map, and the backward pass accumulates its
gradient under the id of the lookup. There are three kinds of lookups:

- a shadow, id → (table, keys, inverse), whose gradient ``(u, dim)`` is summed by key at once;
- a batch that was pooled directly from the tables, whose gradient of bags is stored unchanged. The
  update groups it by key, and sums it while it accesses the rows;
- bags that their owners have pooled, whose gradient ``(b, dim)`` is stored until it is sent to them.

Micro-batches are summed by key in native memory: when a second gradient arrives for a table, the stored
one is summed as well. Therefore a step of many micro-batches needs memory for its distinct keys only.

The file is long because the three kinds of lookups share one lock, and a third of it is documentation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.storage.results import Keys, Rows
from sparring.contracts.tables.table import TableConfig
from sparring.engine.device_gradients import DeviceGradients, SummedByKey
from sparring.errors import InvalidArgumentError, UnknownTableError
from sparring.exchange.bags import RequestedBags
from sparring.exchange.messages import OwnedGradients

__all__ = ["BagInput", "BatchInput", "DirectInput", "ResourceManager", "spread_non_finite"]


@dataclass(frozen=True, slots=True)
class BatchInput:
    """Keys of a shadow."""

    table: str
    keys: Keys
    """``(u,)``: key of each row of the shadow."""
    inverse: npt.NDArray[np.int64]
    """``(n,)``: row of each id of the batch."""


@dataclass(frozen=True, slots=True)
class DirectInput:
    """Batch that was looked up without a shadow."""

    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BagInput:
    """Bags that the owners of their rows have pooled."""

    table: str
    parts: Sequence[RequestedBags]
    """One element, or one per block of the table's columns."""


@dataclass(frozen=True, slots=True)
class _Held:
    sources: Any
    check: Callable[[], None] | None


class ResourceManager:
    """Batch inputs and gradients of all tables. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_shadow_id = count(1)
        self._batch_inputs: dict[int, BatchInput | DirectInput | BagInput] = {}
        self._dims: dict[str, tuple[int, np.dtype[Any]]] = {}
        self._accumulators: dict[str, Any] = {}
        self._views: dict[str, Any] = {}
        self._held: dict[str, _Held] = {}
        self._bags: dict[int, tuple[RequestedBags, Rows]] = {}  # gradients of pools, by number
        self._blocks: dict[str, Sequence[str]] = {}
        self.summed: dict[str, OwnedGradients] = {}
        """Gradients that were summed over all ranks before the step, by table. They may be scaled until
        the step takes them, together with later gradients."""
        self.num_gradients = 0
        """Number of gradients that were accumulated since the container was created."""
        self._num_at_pass = self._num_passes = 0

    def declare(self, table: TableConfig, view: Any, blocks: Sequence[str] = ()) -> None:
        """Prepares for the gradients of a table: ``(u, dim)`` of its computing dtype.

        Args:
            table: configuration of the table.
            view: native `TableView` of the table, which gradients refer to.
            blocks: names of the declared blocks of its columns; `summed` contains their gradients.
        """
        self._blocks[table.name] = blocks
        self._dims[table.name] = (table.dim, table.computing_dtype)
        self._accumulators[table.name] = self.make_accumulator(table)
        self._views[table.name] = view

    @staticmethod
    def make_accumulator(table: TableConfig) -> Any:
        """Creates an empty native accumulator of gradients.

        Args:
            table: the table, which determines dim and computing dtype.
        """
        return _native.GradientAccumulator(table.dim, table.computing_dtype.name)

    def register(self, table: str, keys: Keys, inverse: npt.NDArray[np.int64]) -> int:
        """Records a lookup in the batch-inputs map and returns its shadow id.

        Args:
            table: name of the declared table.
            keys: ``(u,)``, distinct.
            inverse: ``(n,)``: positions of the ids in `keys`.
        """
        shadow_id = next(self._next_shadow_id)
        self._batch_inputs[shadow_id] = BatchInput(table, keys, inverse)
        return shadow_id

    def register_direct(self, tables: Sequence[str]) -> int:
        """Records a batch that was pooled directly from tables and returns its id.

        Args:
            tables: names of the declared tables.
        """
        shadow_id = next(self._next_shadow_id)
        self._batch_inputs[shadow_id] = DirectInput(tuple(tables))
        return shadow_id

    def register_bags(self, table: str, parts: Sequence[RequestedBags]) -> int:
        """Records bags that their owners have pooled and returns their shadow id.

        Args:
            table: name of the declared table.
            parts: one element, or one per block of its columns.
        """
        shadow_id = next(self._next_shadow_id)
        self._batch_inputs[shadow_id] = BagInput(table, parts)
        return shadow_id

    def batch_input(self, shadow_id: int) -> BatchInput | DirectInput | BagInput:
        """Returns the batch input with the given id.

        Args:
            shadow_id: result of one of the methods that register a lookup.

        Raises:
            InvalidArgumentError: the id is unknown, or its step is over.
        """
        found = self._batch_inputs.get(shadow_id)
        if found is None:
            raise InvalidArgumentError(
                f"gradient of shadow {shadow_id}: its step was applied or dropped before this gradient "
                "arrived; run the forward pass again",
                shadow_id=shadow_id,
            )
        return found

    def release(self, shadow_id: int) -> None:
        """Forgets a shadow that will get no gradient.

        Args:
            shadow_id: id of the shadow. Unknown ids are ignored.
        """
        self._batch_inputs.pop(shadow_id, None)

    def accumulate(self, shadow_id: int, gradient: Rows) -> None:
        """Adds the gradient of a shadow to the accumulated gradients of its keys.

        Args:
            shadow_id: id of the shadow.
            gradient: ``(u, dim)`` of the table's computing dtype, C-contiguous; copied.

        Raises:
            InvalidArgumentError: unknown shadow, wrong shape or dtype; nothing is added.
        """
        batch_input = self.batch_input(shadow_id)
        if isinstance(batch_input, BagInput):
            raise InvalidArgumentError(
                f"accumulate: bags {shadow_id} of table {batch_input.table!r} were pooled by their "
                "owners; pass the gradient of the pools to accumulate_bags()",
                shadow_id=shadow_id,
            )
        if isinstance(batch_input, DirectInput):
            raise InvalidArgumentError(
                f"accumulate: batch {shadow_id} of tables {', '.join(batch_input.tables)} was looked up "
                "without a shadow; pass its gradient to accumulate_sources()",
                shadow_id=shadow_id,
            )
        dim, dtype = self._dims[batch_input.table]
        expected = (len(batch_input.keys), dim)
        if gradient.shape != expected or gradient.dtype != dtype:
            raise InvalidArgumentError(
                f"gradient of shadow {shadow_id} of table {batch_input.table!r}: must be {expected} "
                f"{dtype}, found {gradient.shape} {gradient.dtype}; pass one row per row of the lookup",
                table=batch_input.table,
                shadow_id=shadow_id,
            )
        with self._lock:
            self.num_gradients += 1
            self._accumulators[batch_input.table].add(batch_input.keys, gradient)

    def bags(self, shadow_id: int) -> BagInput:
        """Returns the bags that were registered by `register_bags`.

        Args:
            shadow_id: id of the bags.

        Raises:
            InvalidArgumentError: as `batch_input`, or the id belongs to another kind of lookup.
        """
        found = self.batch_input(shadow_id)
        if isinstance(found, BagInput):
            return found
        raise InvalidArgumentError(
            f"accumulate_bags: batch {shadow_id} was not pooled by the owners of its rows; pass its "
            "gradient to accumulate() or accumulate_sources()",
            shadow_id=shadow_id,
        )

    def accumulate_bags(self, shadow_id: int, gradient: Rows) -> None:
        """Adds the gradient of pools to their accumulated gradient.

        Args:
            shadow_id: id of the bags.
            gradient: ``(b, dim)`` of the table's computing dtype; copied.

        Raises:
            InvalidArgumentError: unknown bags, wrong shape or dtype; nothing is added.
        """
        divided = self.split_gradient(shadow_id, gradient)
        with self._lock:
            self.num_gradients += 1
            for requested, given in divided:
                known = self._bags.get(requested.number)
                both = given.copy() if known is None else known[1] + given
                self._bags[requested.number] = requested, both

    def split_gradient(self, shadow_id: int, gradient: Rows) -> list[tuple[RequestedBags, Rows]]:
        """Splits the gradient of pools by the blocks of the table's columns.

        If there are several blocks, a bag whose gradient is not finite gets NaN in all of them, so that
        their owners skip the same keys.

        Args:
            shadow_id: id of the bags.
            gradient: ``(b, dim)`` of the table's computing dtype.

        Returns:
            The bags and the gradient of each block; only one pair if columns are not split.

        Raises:
            InvalidArgumentError: as `accumulate_bags`.
        """
        bags = self.bags(shadow_id)
        dim, dtype = self._dims[bags.table]
        expected = (bags.parts[0].num_bags, dim)
        if gradient.shape != expected or gradient.dtype != dtype:
            raise InvalidArgumentError(
                f"gradient of pools {shadow_id} of table {bags.table!r}: must be {expected} {dtype}, "
                f"found {gradient.shape} {gradient.dtype}; pass one row per bag",
                table=bags.table,
                shadow_id=shadow_id,
            )
        if len(bags.parts) == 1:
            return [(bags.parts[0], gradient)]
        gradient = spread_non_finite(gradient)
        ends = np.cumsum([each.table.dim for each in bags.parts])[:-1]
        blocks = map(np.ascontiguousarray, np.split(gradient, ends, axis=1))
        return list(zip(bags.parts, blocks, strict=True))

    def take_bags(self) -> list[tuple[RequestedBags, Rows]]:
        """Returns the gradients of all pools and resets them."""
        with self._lock:
            bags, self._bags = self._bags, {}
        return list(bags.values())

    def count_pass(self) -> int:
        """Returns the number of backward passes since gradients were last taken or dropped, or 0 if none
        has run since the previous call. A forward pass calls it first."""
        if self.num_gradients == self._num_at_pass:
            return 0
        self._num_at_pass = self.num_gradients
        self._num_passes += 1
        return self._num_passes

    def _reset_passes(self) -> None:
        self._num_at_pass, self._num_passes = self.num_gradients, 0

    def first_bags(self) -> int | None:
        """Returns the number of the first lookup whose pools have or may still get a gradient, or
        None."""
        inputs = list(self._batch_inputs.values())
        alive = [each.parts[0].number for each in inputs if isinstance(each, BagInput)]
        with self._lock:
            return min([*alive, *self._bags], default=None)

    def add(self, table: str, keys: Keys, gradients: Rows) -> None:
        """Adds gradients of keys that this rank owns.

        Args:
            table: name of the declared table.
            keys: ``(u,)``, distinct.
            gradients: ``(u, dim)`` of the table's computing dtype.
        """
        with self._lock:
            self._accumulators[table].add(keys, gradients)

    def accumulate_by_key(self, table: str, keys: Keys, gradients: Rows) -> None:
        """Accumulates gradients by key, without a lookup, of keys that this rank owns.

        Args:
            table: name of the table.
            keys: ``(n,)``, C-contiguous and aligned; gradients of repeated keys are summed.
            gradients: ``(n, dim)`` of the table's computing dtype, C-contiguous and aligned. Neither
                array may change until the step.

        Raises:
            UnknownTableError: `table` was not declared.
            InvalidArgumentError: wrong shape or dtype; nothing is accumulated.
        """
        self._accumulator(table)
        sources = _native.key_gradients(self._views[table], keys, gradients)
        with self._lock:
            self.num_gradients += 1
            self._hold(table, _Held(sources, None))

    def accumulate_sources(
        self, shadow_id: int, sources: Any, check: Callable[[], None] | None = None
    ) -> None:
        """Accumulates the gradient of a batch that was registered by `register_direct`.

        Args:
            shadow_id: id of the batch.
            sources: native `GradientSources` of the batch, or `DeviceGradients`. Their arrays must not
                change until the step.
            check: called before the arrays are used; raises if they have changed.

        Raises:
            InvalidArgumentError: unknown batch; nothing is accumulated.
        """
        batch_input = self._batch_inputs.get(shadow_id) or self.batch_input(shadow_id)
        assert isinstance(batch_input, DirectInput)
        held = _Held(sources, check)
        with self._lock:
            self.num_gradients += 1
            for table in batch_input.tables:
                self._hold(table, held)

    def _hold(self, table: str, held: _Held) -> None:
        waiting = self._held.get(table)
        joined = None if waiting is None else _join(waiting, held)
        if joined is not None:
            self._held[table] = joined
        elif waiting is not None or self._accumulators[table].size:
            self._add_held(table)
            self._add_up(table, held)
        else:
            self._held[table] = held

    def take_step(self, *, are_summed: bool) -> dict[str, Any]:
        """Calls `take` and forgets the batch inputs of the step.

        Args:
            are_summed: as for `take`.
        """
        taken = self.take(are_summed=are_summed)
        self._batch_inputs.clear()
        return taken

    def take(self, *, are_summed: bool) -> dict[str, Any]:
        """Returns the gradients of all tables and resets them.

        Args:
            are_summed: whether gradients in host memory are summed by key. Otherwise a fused update may
                get them unsummed.

        Returns:
            For each table with gradients, `SummedByKey` or native `GradientSources`; `DeviceGradients`
            if all gradients of the table are on a device.
        """
        taken: dict[str, Any] = {}
        with self._lock:
            self._reset_passes()
            self._add_summed()
            for table, accumulator in self._accumulators.items():
                held = self._held.pop(table, None)
                if held is not None and not accumulator.size:
                    if held.check is not None:
                        held.check()
                    taken[table] = held.sources
                    if are_summed and not isinstance(held.sources, DeviceGradients):
                        view = self._views[table]
                        handles = held.sources.row_handles(view)
                        keys, gradients = held.sources.summed(view)
                        taken[table] = SummedByKey(keys, gradients, row_handles=handles)
                    continue
                if held is not None:
                    self._add_up(table, held)
                if accumulator.size:
                    keys, gradients = accumulator.take()
                    taken[table] = (
                        SummedByKey(keys, gradients)
                        if are_summed
                        else _native.key_gradients(
                            self._views[table], keys, gradients, are_distinct=True
                        )
                    )
        return taken

    def drop(self, table: str) -> None:
        """Drops a table's gradients. Lookups whose gradients are still to come stay valid.

        Args:
            table: name of the declared table.

        Raises:
            UnknownTableError: `table` was not declared.
        """
        with self._lock:
            self._reset_passes()
            names = (table, *self._blocks.get(table, ()))
            for number in [n for n, (each, _) in self._bags.items() if each.table.name in names]:
                del self._bags[number]
            for each in names:
                self.summed.pop(each, None)
                self._held.pop(each, None)
                accumulator = self._accumulators.get(each)
                (self._accumulator(each) if accumulator is None else accumulator).clear()

    def has_gradient(self, table: str) -> bool:
        """Whether a table has a gradient that was not applied yet.

        Args:
            table: name of the declared table.

        Raises:
            UnknownTableError: `table` was not declared.
        """
        with self._lock:
            self._accumulator(table)
            names = (table, *self._blocks[table])
            return any(each.table.name in names for each, _ in self._bags.values()) or any(
                each in self._held or each in self.summed or self._accumulators[each].size > 0
                for each in names
            )

    def discard(self) -> None:
        """Drops all batch inputs and gradients of the step."""
        with self._lock:
            self._reset_passes()
            self._batch_inputs.clear()
            self.summed.clear()
            self._held.clear()
            self._bags.clear()
            for accumulator in self._accumulators.values():
                accumulator.clear()

    @property
    def num_batch_inputs(self) -> int:
        """Number of lookups of this step that were registered and not released."""
        return len(self._batch_inputs)

    def _add_summed(self) -> None:
        while self.summed:
            table, owned = self.summed.popitem()
            keys, gradients = owned.keys, owned.gradients
            if isinstance(gradients, np.ndarray):
                self._accumulators[table].add(keys, gradients)
                continue
            take = owned.kernels.arrays.follow([keys, gradients])
            sources = DeviceGradients(owned.kernels, [SummedByKey(keys, gradients, take)])
            self._hold(table, _Held(sources, None))

    def _add_held(self, table: str) -> None:
        held = self._held.pop(table, None)
        if held is not None:
            self._add_up(table, held)

    def _add_up(self, table: str, held: _Held) -> None:
        self._accumulators[table].add(*self._sum_held(table, held))

    def _sum_held(self, table: str, held: _Held) -> tuple[Keys, Rows]:
        if held.check is not None:
            held.check()
        keys, gradients = held.sources.summed(self._views[table])
        return keys, gradients

    def _accumulator(self, table: str) -> Any:
        accumulator = self._accumulators.get(table)
        if accumulator is None:
            raise UnknownTableError(
                f"gradients of table {table!r}: it was not declared; declared tables: "
                f"{', '.join(self._accumulators) or 'none'}",
                table=table,
            )
        return accumulator


def spread_non_finite(gradients: Rows) -> Rows:
    """Returns gradients in which each row that is not finite has NaN in all columns.

    Each owner of a block of columns sees only its columns; with this, all of them skip the same keys.

    Args:
        gradients: ``(n, dim)``; not changed.
    """
    is_good = _native.finite_rows(np.ascontiguousarray(gradients))
    if is_good.all():
        return gradients
    return np.where(is_good[:, None], gradients, gradients.dtype.type(np.nan))


def _join(waiting: _Held, held: _Held) -> _Held | None:
    """Joins both if they need not be summed in host memory; otherwise returns None."""
    if not isinstance(waiting.sources, DeviceGradients):
        return None
    sources = waiting.sources.joined(held.sources)
    if sources is None:
        return None
    checks = [each.check for each in (waiting, held) if each.check is not None]

    def check() -> None:
        for each in checks:
            each()

    if sources.is_long:
        check()
        return _Held(sources.add_up(), None)
    return _Held(sources, check)
