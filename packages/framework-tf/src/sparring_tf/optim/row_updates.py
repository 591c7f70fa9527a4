"""Gradients of anchors to rows of tables: what an optimizer's step does in Python."""

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
    """How rows are updated: `NativeUpdater` or `FusedUpdater`."""

    @property
    def variables(self) -> list[Any]: ...

    @property
    def routes(self) -> dict[str, str]: ...

    def step(self, learning_rate: float, iterations: int, /) -> None: ...


class RowUpdates:
    """Takes gradients, and steps.

    Args:
        container: where the tables live.
        updater: how rows are updated.
        num_parts: gradients of so many calls make a step, which takes their mean.
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
        """One call of an optimizer, in a graph or without one.

        Args:
            tables: of each gradient.
            gradients: `tf.IndexedSlices`.
            anchors: of all tables that the model reads: what they guard comes before or after.
            rate: the learning rate, a scalar.
            iterations: steps before this one, a scalar.

        Returns:
            1 where a step was taken, 0 where its gradients wait for others: an int64 scalar.
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
                # They wait, so they are copied.
                ids, values = ids.copy(), values / values.dtype.type(self._num_parts)
            view = self.container.entry(table).view
            ids, values = np.ascontiguousarray(ids), np.ascontiguousarray(values)
            sources.append(key_gradients(view, ids, values))
        # All of them are right: from here on they count.
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
            # A step that is refused before the container saw it drops its gradients all the same.
            for table in self.container.tables:
                resources.drop(table)
            self._changing.clear()
            raise
        record_change(self.container, self._changing)
        self._changing.clear()
        return 1


def _write_nothing(anchor: Any) -> Any:
    """Writes to an anchor, which has nothing to write: lookups wait for it, and it for them."""
    variable = anchor.value
    return variable.assign(tf.zeros_like(variable), read_value=False)
