"""The part of an optimizer's step that runs in Python: passes gradients of anchors to the tables."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sparring import StepContainer
from sparring.adapter import key_gradients
from sparring.errors import InvalidArgumentError
from sparring_tf.lookup.exchanged_lookup import run_in_order
from sparring_tf.lookup.row_versions import record_change

__all__ = ["Updater", "RowUpdates"]

_last: weakref.WeakKeyDictionary[StepContainer, dict[str, object]] = weakref.WeakKeyDictionary()
"""Table → token of the optimizer that trained its rows last."""


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
        self._token = object()
        self._trained: set[str] = set()
        self._kept: set[str] = set()
        """Tables with gradients of earlier calls of this step."""

    def step(
        self,
        tables: Sequence[str],
        gradients: Sequence[Any],
        anchors: Sequence[Any],
        rate: Any,
        iterations: Any,
        dense_calls: Any,
    ) -> Any:
        """Executes one call of an optimizer, in a graph or eagerly.

        Args:
            tables: table of each gradient.
            gradients: one `tf.IndexedSlices` per table.
            anchors: anchors of all layers in the container, in a graph. They order lookups and steps.
            rate: learning rate, a scalar.
            iterations: number of steps before this one, a scalar.
            dense_calls: number of calls of the optimizer of ordinary variables, or -1 if there are none.

        Returns:
            Number of calls of this step including this one, an int64 scalar. If it is less than
            `num_parts`, more gradients are required.
        """
        dtypes = [self.container.tables[table].computing_dtype for table in tables]
        arrays = [
            part
            for each, dtype in zip(gradients, dtypes, strict=True)
            for part in (each.indices, tf.cast(each.values, dtype))
        ]
        counts = tf.stack([tf.cast(iterations, tf.int64), tf.cast(dense_calls, tf.int64)])
        inputs = [tf.cast(rate, tf.float64), counts, *arrays]

        def taken(
            rate: npt.NDArray[Any], counts: npt.NDArray[Any], *parts: npt.NDArray[Any]
        ) -> list[npt.NDArray[np.int64]]:
            if self._num_parts > 1:
                self._check_unfinished(int(counts[1]))
            return [np.array(self._take(tables, float(rate), int(counts[0]), parts), np.int64)]

        if tf.executing_eagerly():
            return run_in_order(taken, inputs, [tf.int64])[0]
        with tf.control_dependencies([_write_nothing(each) for each in anchors]):
            (count,) = run_in_order(taken, inputs, [tf.int64])
        count.set_shape([])
        with tf.control_dependencies([count]):
            written = [_write_nothing(each) for each in anchors]
        with tf.control_dependencies(written):
            return tf.identity(count)

    def _check_unfinished(self, dense_calls: int) -> None:
        """Drops the gradients of earlier calls of this step if those of some variables were lost.

        Files contain the gradients of ordinary variables, but not gradients of rows, which errors and
        `StepContainer.load` drop.
        """
        resources = self.container.resources
        num_dense = dense_calls % self._num_parts if dense_calls >= 0 else self._num_taken
        if num_dense == self._num_taken and all(map(resources.has_gradient, self._kept)):
            return
        warnings.warn(
            f"Optimizer: {max(num_dense, self._num_taken)} of gradient_accumulation_steps="
            f"{self._num_parts} calls of a step were lost by an error or by loading a file that was "
            "saved between steps; this call starts the step again, for rows and ordinary variables",
            stacklevel=2,
        )
        self._drop()

    def _check_last(self, tables: Sequence[str]) -> None:
        """Rejects two optimizers that alternate: both would write the same optimizer state in rows.

        An optimizer that has not trained a table may continue the state of another one.
        """
        last = _last.get(self.container, {})
        for table in tables:
            is_continued = table not in self._trained or last[table] is self._token
            if not is_continued and self.container.tables[table].state_width:
                raise InvalidArgumentError(
                    f"apply: another Optimizer has trained table {table!r} since the last step of this "
                    "one, and both would write the same optimizer state in its rows, while Keras keeps "
                    "one per optimizer. Use one Optimizer for all losses of the table; to train in "
                    "stages, create a new Optimizer for each stage",
                    table=table,
                )

    def _drop(self) -> None:
        for table in self.container.tables:
            self.container.resources.drop(table)
        self._num_taken = 0
        self._changing.clear()
        self._kept.clear()

    def _take(
        self, tables: Sequence[str], rate: float, iterations: int, parts: Sequence[Any]
    ) -> int:
        resources = self.container.resources
        self._check_last(tables)
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
        _last.setdefault(self.container, {}).update(dict.fromkeys(tables, self._token))
        self._trained.update(tables)
        self._num_taken += 1
        self._changing.update(tables)
        if self._num_taken < self._num_parts:
            self._kept.update(table for table in tables if resources.has_gradient(table))
            return self._num_taken
        try:
            self.updater.step(rate, iterations)
        except BaseException:
            # If the step failed before the container applied it, drop its gradients as well.
            self._drop()
            raise
        record_change(self.container, self._changing)
        self._num_taken = 0
        self._changing.clear()
        self._kept.clear()
        return self._num_parts


def _write_nothing(anchor: Any) -> Any:
    """Writes an anchor, which has no elements, to order lookups and steps in a graph."""
    variable = anchor.value
    return variable.assign(tf.zeros_like(variable), read_value=False)
