"""The part of an optimizer's step that runs in Python: passes gradients of anchors to the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sparring import StepContainer
from sparring.adapter import key_gradients
from sparring_tf.lookup.exchanged_lookup import run_in_order
from sparring_tf.lookup.row_versions import record_change

__all__ = ["Updater", "RowUpdates"]


class Updater(Protocol):
    """Updates rows: `NativeUpdater` or `FusedUpdater`."""

    @property
    def variables(self) -> list[Any]: ...

    @property
    def routes(self) -> dict[str, str]: ...

    def step(self, learning_rate: float, iterations: int, /) -> None: ...


class RowUpdates:
    """Collects gradients and applies them in steps.

    Args:
        container: container of the tables.
        updater: updates the rows.
        num_parts: number of calls whose mean gradients make one step.
    """

    def __init__(self, container: StepContainer, updater: Updater, num_parts: int) -> None:
        self.container, self.updater = container, updater
        self._num_parts = num_parts
        self._num_taken = 0
        self._changing: set[str] = set()

    def step(
        self,
        tables: Sequence[str],
        gradients: Sequence[Any],
        anchors: Sequence[Any],
        rate: Any,
        iterations: Any,
    ) -> Any:
        """Executes one call of an optimizer, in a graph or eagerly.

        Args:
            tables: table of each gradient.
            gradients: one `tf.IndexedSlices` per table.
            anchors: anchors of all layers in the container, in a graph. They order lookups and steps.
            rate: learning rate, a scalar.
            iterations: number of steps before this one, a scalar.

        Returns:
            An int64 scalar: 1 if a step was taken, 0 if more gradients are required.
        """
        dtypes = [self.container.tables[table].computing_dtype for table in tables]
        arrays = [
            part
            for each, dtype in zip(gradients, dtypes, strict=True)
            for part in (each.indices, tf.cast(each.values, dtype))
        ]
        inputs = [tf.cast(rate, tf.float64), tf.cast(iterations, tf.int64), *arrays]

        def taken(
            rate: npt.NDArray[Any], iterations: npt.NDArray[Any], *parts: npt.NDArray[Any]
        ) -> list[npt.NDArray[np.int64]]:
            return [np.array(self._take(tables, float(rate), int(iterations), parts), np.int64)]

        if tf.executing_eagerly():
            return run_in_order(taken, inputs, [tf.int64])[0]
        with tf.control_dependencies([_write_nothing(each) for each in anchors]):
            (is_taken,) = run_in_order(taken, inputs, [tf.int64])
        is_taken.set_shape([])
        with tf.control_dependencies([is_taken]):
            written = [_write_nothing(each) for each in anchors]
        with tf.control_dependencies(written):
            return tf.identity(is_taken)

    def _take(
        self, tables: Sequence[str], rate: float, iterations: int, parts: Sequence[Any]
    ) -> int:
        resources = self.container.resources
        sources = []
        for place, table in enumerate(tables):
            ids, values = parts[2 * place], parts[2 * place + 1]
            if self._num_parts > 1:
                # Copied, because the gradients are kept until a later call.
                ids, values = ids.copy(), values / values.dtype.type(self._num_parts)
            view = self.container.entry(table).view
            ids, values = np.ascontiguousarray(ids), np.ascontiguousarray(values)
            sources.append(key_gradients(view, ids, values))
        # All gradients are valid, so they can be added.
        for table, source in zip(tables, sources, strict=True):
            number = resources.register_direct([table])
            try:
                resources.accumulate_sources(number, source)
            finally:
                resources.release(number)
        self._num_taken += 1
        self._changing.update(tables)
        if self._num_taken < self._num_parts:
            return 0
        self._num_taken = 0
        try:
            self.updater.step(rate, iterations)
        except BaseException:
            # If the step failed before the container applied it, drop its gradients as well.
            for table in self.container.tables:
                resources.drop(table)
            self._changing.clear()
            raise
        record_change(self.container, self._changing)
        self._changing.clear()
        return 1


def _write_nothing(anchor: Any) -> Any:
    """Writes an anchor, which has no elements, to order lookups and steps in a graph."""
    variable = anchor.value
    return variable.assign(tf.zeros_like(variable), read_value=False)
