"""What one step holds between forward and update: batch inputs and accumulated gradients.

Forward registers each lookup in the batch-inputs map: shadow id → (table, keys, inverse). Backward
hands in the gradient of a shadow under that id; micro-batches add up by key, in native memory, so a
step of many micro-batches costs memory for its distinct keys only.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.errors import InvalidArgumentError, UnknownTableError
from sparring.storage.contract import Keys, Rows
from sparring.table import TableConfig

__all__ = ["Accumulated", "BatchInput", "ResourceManager"]


@dataclass(frozen=True, slots=True)
class BatchInput:
    """What a shadow stands for."""

    table: str
    keys: Keys
    """``(u,)``, the key of each row of the shadow."""
    inverse: npt.NDArray[np.int64]
    """``(n,)``, the row of each id of the batch."""


@dataclass(frozen=True, slots=True)
class Accumulated:
    """The sum of a table's gradients since the last step."""

    keys: Keys
    """``(u,)`` in order of first occurrence."""
    gradients: Rows
    """``(u, dim)``"""


class ResourceManager:
    """Batch inputs and gradients of all tables. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_shadow_id = count(1)
        self._batch_inputs: dict[int, BatchInput] = {}
        self._dims: dict[str, tuple[int, np.dtype[Any]]] = {}
        self._accumulators: dict[str, Any] = {}

    def declare(self, table: TableConfig) -> None:
        """Makes room for a table's gradients: ``(u, dim)`` of its dtype."""
        self._dims[table.name] = (table.dim, table.numpy_dtype)
        self._accumulators[table.name] = self.make_accumulator(table)

    @staticmethod
    def make_accumulator(table: TableConfig) -> Any:
        """An empty native accumulator for gradients of `table`."""
        return _native.GradientAccumulator(table.dim, table.dtype)

    def register(self, table: str, keys: Keys, inverse: npt.NDArray[np.int64]) -> int:
        """Enters one lookup into the batch-inputs map. Returns its shadow id."""
        shadow_id = next(self._next_shadow_id)
        self._batch_inputs[shadow_id] = BatchInput(table, keys, inverse)
        return shadow_id

    def batch_input(self, shadow_id: int) -> BatchInput:
        """What a shadow stands for.

        Raises:
            InvalidArgumentError: the id was never given, or its step is over.
        """
        found = self._batch_inputs.get(shadow_id)
        if found is None:
            raise InvalidArgumentError(
                f"shadow {shadow_id} is not part of this step: its step was applied or dropped "
                "before this gradient came; run forward again",
                shadow_id=shadow_id,
            )
        return found

    def release(self, shadow_id: int) -> None:
        """Forgets a shadow that will get no gradient; unknown ids are no error."""
        self._batch_inputs.pop(shadow_id, None)

    def accumulate(self, shadow_id: int, gradient: Rows) -> None:
        """Adds the gradient of a shadow to what its keys have so far.

        Args:
            gradient: ``(u, dim)`` of the table's dtype, C-contiguous; copied.

        Raises:
            InvalidArgumentError: unknown shadow, wrong shape or dtype; nothing is added.
        """
        batch_input = self.batch_input(shadow_id)
        dim, dtype = self._dims[batch_input.table]
        expected = (len(batch_input.keys), dim)
        if gradient.shape != expected or gradient.dtype != dtype:
            raise InvalidArgumentError(
                f"gradient of shadow {shadow_id} of table {batch_input.table!r}: must be {expected} "
                f"{dtype}, found {gradient.shape} {gradient.dtype}",
                table=batch_input.table,
                shadow_id=shadow_id,
            )
        with self._lock:
            self._accumulators[batch_input.table].add(batch_input.keys, gradient)

    def take(self, table: str) -> Accumulated:
        """What a table's gradients add up to; it then starts from nothing again."""
        with self._lock:
            return Accumulated(*self._accumulator(table).take())

    def num_accumulated(self, table: str) -> int:
        """Distinct keys of `table` that have a gradient waiting."""
        return int(self._accumulator(table).size)

    def discard(self) -> None:
        """Drops all batch inputs and all gradients: the step never was."""
        with self._lock:
            self._batch_inputs.clear()
            for accumulator in self._accumulators.values():
                accumulator.clear()

    def end_step(self) -> None:
        """Forgets the shadows of a step that was applied."""
        self._batch_inputs.clear()

    @property
    def num_batch_inputs(self) -> int:
        """Lookups of this step that were registered and not released."""
        return len(self._batch_inputs)

    @property
    def memory_bytes(self) -> int:
        """Native memory held for gradients, in bytes."""
        return sum(int(accumulator.memory_bytes) for accumulator in self._accumulators.values())

    def _accumulator(self, table: str) -> Any:
        accumulator = self._accumulators.get(table)
        if accumulator is None:
            raise UnknownTableError(
                f"table {table!r} was not declared; declared are "
                f"{', '.join(self._accumulators) or 'none'}",
                table=table,
            )
        return accumulator
