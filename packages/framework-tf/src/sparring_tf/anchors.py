"""Anchors: weights without elements that stand for the rows of tables.

A `tf.train.Checkpoint` saves and restores variables, and so an anchor gives it the rows::

    …/rows_anchor/.ATTRIBUTES/VARIABLE_VALUE     (0, dim)
                              SPARRING_TABLE     what a row is, as JSON
                              SPARRING_KEYS      (n) int64
                              SPARRING_ROWS      (n, row bytes) uint8
                              SPARRING_SCORES    (n) uint64
                              SPARRING_STATE     the state of a new row

TensorFlow reads all tensors before it restores the first variable: where one is missing, nothing changes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from sparring.errors import DataError, InvalidArgumentError, UnsupportedError
from sparring_tf.saved_rows import TableRows, check_inside, gather_rows, restore_rows

if TYPE_CHECKING:
    from sparring_tf.table_layer import TableAgent

__all__ = ["Anchor", "TrainedTable", "trained_table"]

_TABLE = "SPARRING_TABLE"
_ARRAYS = {
    "SPARRING_KEYS": "keys",
    "SPARRING_ROWS": "rows",
    "SPARRING_SCORES": "scores",
    "SPARRING_STATE": "state",
}


@dataclass(frozen=True, slots=True)
class TrainedTable:
    """What an anchor stands for."""

    agent: TableAgent
    name: str


class Anchor(keras.Variable):  # type: ignore[misc,unused-ignore]
    """The weight of shape (0, dim) to which the gradients of a table flow.

    Args:
        trained: what it stands for.
        dim: elements of an embedding.
        dtype: that the table computes in.
    """

    def __init__(self, trained: TrainedTable, dim: int, dtype: str) -> None:
        super().__init__(
            keras.initializers.Zeros(),
            shape=(0, dim),
            dtype=dtype,
            trainable=True,
            # Mixed precision converts what is looked up, not what gradients flow to.
            autocast=False,
            name=f"{trained.name}_anchor",
        )
        self.sparring_table = trained

    @property
    def overwrite_with_gradient(self) -> bool:
        """What optimizers of Keras ask each variable before a step: False.

        Raises:
            InvalidArgumentError: no `sparring_tf.Optimizer` was made for the table. Another would
                take the anchor for a matrix without rows.
        """
        trained = self.sparring_table
        if not trained.agent.has_optimizer:
            raise InvalidArgumentError(
                f"the rows of table {trained.name!r} cannot be updated by an optimizer of Keras "
                "alone; wrap it: sparring_tf.Optimizer(model, keras.optimizers.Adam(…))",
                table=trained.name,
            )
        return False

    # TensorFlow's protocol of what a checkpoint holds.

    def _serialize_to_tensors(self) -> dict[str, Any]:
        self._check_eager("write")
        trained = self.sparring_table
        container = trained.agent.container
        remedy = "save a snapshot: container.save(url)"
        check_inside(container, trained.name, "checkpoint", remedy)
        rows = gather_rows(container, trained.name)
        tensors = {_TABLE: tf.constant(json.dumps(rows.described))}
        tensors |= {name: tf.constant(getattr(rows, field)) for name, field in _ARRAYS.items()}
        return {**super()._serialize_to_tensors(), **tensors}

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        self._check_eager("restore")
        trained = self.sparring_table
        tensors = dict(restored_tensors)
        try:
            described = json.loads(tensors.pop(_TABLE).numpy())
        except ValueError as error:
            raise DataError(
                f"the checkpoint's rows of table {trained.name!r} are damaged: {error}; restore an "
                "older one",
                table=trained.name,
            ) from error
        arrays = {field: np.array(tensors.pop(name)) for name, field in _ARRAYS.items()}
        rows = TableRows(described, **arrays)
        restore_rows(trained.agent.container, trained.name, rows)
        return super()._restore_from_tensors(tensors)

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        raise UnsupportedError(
            f"rows of table {self.sparring_table.name!r} cannot be copied for a checkpoint that is "
            "written asynchronously; leave experimental_enable_async_checkpoint out, or save "
            "beside the steps with container.save(url, blocking=False)",
            table=self.sparring_table.name,
        )

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> dict[str, Any]:
        children = dict(super()._trackable_children(save_type, **options))
        if save_type == "savedmodel":
            # Whatever holds the anchor finds its rows by it.
            numbers = self.sparring_table.agent.numbers
            children |= {f"lookup_{place}": each for place, each in enumerate(numbers)}
        return children

    def _check_eager(self, verb: str) -> None:
        # In a graph, rows would be constants of the moment in which it was traced.
        if not tf.executing_eagerly():
            raise UnsupportedError(
                f"rows of table {self.sparring_table.name!r} cannot be part of a graph; "
                f"{verb} checkpoints outside of tf.function",
                table=self.sparring_table.name,
            )


def trained_table(variable: Any) -> TrainedTable | None:
    """What a variable stands for, if it is an anchor."""
    return getattr(variable, "sparring_table", None)
