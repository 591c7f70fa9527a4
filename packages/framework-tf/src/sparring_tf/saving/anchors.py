"""Anchors: weights without elements that represent the rows of tables.

A `tf.train.Checkpoint` saves and restores variables, so the anchor adds the rows as tensors::

    …/rows_anchor/.ATTRIBUTES/VARIABLE_VALUE     (0, dim)
                              SPARRING_TABLE     description of a row, as JSON
                              SPARRING_KEYS      (n) int64
                              SPARRING_ROWS      (n, row bytes) uint8
                              SPARRING_SCORES    (n) uint64
                              SPARRING_STATE     the state of a new row

If the rows are too large, the JSON refers to a snapshot, ``checkpoint-1.checkpoint.rows/save-000001.0``;
see `sidecar`. Before TensorFlow restores the first variable, it requests the names and dtypes of the
tensors of all variables. Differences that are found then raise an error, and nothing changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from sparring.errors import DataError, InvalidArgumentError, UnsupportedError
from sparring_tf.saving import saved_rows
from sparring_tf.saving.checkpoint_files import (
    TABLE_TENSOR,
    RestoredCheckpoint,
    find_restored_checkpoint,
    find_written_checkpoint,
    is_saved_model_being_written,
    rows_path,
)
from sparring_tf.saving.orphaned_rows import remove_orphans
from sparring_tf.saving.saved_rows import (
    TableRows,
    check_ranks,
    check_rows,
    gather_rows,
    parse_description,
    restore_rows,
)
from sparring_tf.saving.sidecar import begin_save

if TYPE_CHECKING:
    from sparring_tf.lookup.table_agent import TableAgent

__all__ = ["Anchor", "TrainedTable", "read_by_own_scaler", "trained_table"]

_STATE = "SPARRING_STATE"
_ARRAYS = {
    "SPARRING_KEYS": "keys",
    "SPARRING_ROWS": "rows",
    "SPARRING_SCORES": "scores",
    _STATE: "state",
}
_DTYPES = {"SPARRING_KEYS": tf.int64, "SPARRING_ROWS": tf.uint8, "SPARRING_SCORES": tf.uint64}


_is_own_scaler: list[bool] = []


@contextmanager
def read_by_own_scaler() -> Iterator[None]:
    """Allows a `sparring_tf.LossScaleOptimizer` to read properties that Keras optimizers read."""
    _is_own_scaler.append(True)
    try:
        yield
    finally:
        _is_own_scaler.pop()


@dataclass(frozen=True, slots=True)
class TrainedTable:
    """The table that an anchor represents."""

    agent: TableAgent
    name: str


class Anchor(keras.Variable):  # type: ignore[misc,unused-ignore]
    """Weight of shape (0, dim) that receives the gradients of a table's rows.

    Args:
        trained: the table.
        dim: number of elements of an embedding.
        dtype: dtype that the table computes in.
    """

    def __init__(self, trained: TrainedTable, dim: int, dtype: str) -> None:
        super().__init__(
            keras.initializers.Zeros(),
            shape=(0, dim),
            dtype=dtype,
            trainable=True,
            # Mixed precision casts the looked-up embeddings, not the anchor.
            autocast=False,
            name=f"{trained.name}_anchor",
        )
        self.sparring_table = trained
        self._restored: RestoredCheckpoint | None = None

    @property
    def overwrite_with_gradient(self) -> bool:
        """False. Keras optimizers read it from each variable before a step.

        Raises:
            InvalidArgumentError: it is not read in `read_by_own_scaler`. Another optimizer would treat
                the anchor as a matrix without rows.
        """
        trained = self.sparring_table
        if not _is_own_scaler:
            raise InvalidArgumentError(
                f"the rows of table {trained.name!r} cannot be updated by a Keras optimizer; "
                "wrap it: sparring_tf.Optimizer(model, keras.optimizers.Adam(…))",
                table=trained.name,
            )
        return False

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        """Converts the anchor to a tensor, for example in a penalty over all variables of a model.

        The gradient of the tensor raises an error, because the penalty would not include the rows.
        Lookups use `value` instead.
        """
        value = super().__tf_tensor__(dtype, name)
        return _without_gradient(value, self.sparring_table.name) if self.trainable else value

    def numpy(self) -> Any:
        """Returns an empty array that contains the version of the rows. Called by `get_weights`."""
        trained = self.sparring_table
        return trained.agent.with_version(trained.name, super().numpy())

    def assign(self, value: Any) -> Any:
        """Compares the version of a result of `numpy` with the rows. Called by `set_weights`.

        Raises:
            InvalidArgumentError: the value is a tensor or another result of arithmetic, which is not
                connected to any rows.
        """
        trained = self.sparring_table
        if not isinstance(value, np.ndarray):
            trained.agent.reject_values(trained.name, f"a value of class {type(value).__name__}")
        assigned = super().assign(value)
        trained.agent.on_weights_set(trained.name, value)
        return assigned

    # TensorFlow's protocol for the contents of a checkpoint.

    def _serialize_to_tensors(self) -> dict[str, Any]:
        restored = find_restored_checkpoint()
        if restored is None and is_saved_model_being_written():
            return dict(super()._serialize_to_tensors())
        self._check_eager("write" if restored is None else "restore")
        tensors = super()._serialize_to_tensors()
        if restored is not None:
            self._check_restored(restored)
            return {**tensors, TABLE_TENSOR: tf.constant(""), **self._empty()}
        rows = self._gather_rows()
        tensors |= {name: tf.constant(getattr(rows, field)) for name, field in _ARRAYS.items()}
        return {**tensors, TABLE_TENSOR: tf.constant(json.dumps(rows.described))}

    def _gather_rows(self) -> TableRows:
        """Returns the rows, or their location after saving them next to the checkpoint."""
        trained = self.sparring_table
        container, table = trained.agent.container, trained.name
        trained.agent.check_versions()
        trained.agent.warn_about_unfinished_step(table)
        check_ranks(container, table, "checkpoint", "save a snapshot: container.save(url)")
        if saved_rows.num_row_bytes(container, table) <= saved_rows.MAX_BYTES:
            return gather_rows(container, table)
        path, written = find_written_checkpoint()
        save = begin_save(written, lambda: path)
        save.write(container)
        save.remove_older()
        remove_orphans(path)
        return gather_rows(container, table, save.rows(container, table))

    def _check_restored(self, restored: RestoredCheckpoint) -> None:
        trained = self.sparring_table
        missing = [name for name in (TABLE_TENSOR, *_ARRAYS) if name not in restored.keys]
        if missing:
            raise DataError(
                f"checkpoint {restored.prefix} has no rows of table {trained.name!r}: the tensors "
                f"{', '.join(missing)} of {next(iter(restored.keys.values()), 'the table')} are missing. "
                "Nothing was restored: it was written without the layer of sparring_tf; restore a "
                "checkpoint that was written with it",
                table=trained.name,
            )
        reader = tf.train.load_checkpoint(restored.prefix)
        described = parse_description(reader.get_tensor(restored.keys[TABLE_TENSOR]), trained.name)
        path = partial(rows_path, restored.prefix)
        check_rows(trained.agent.container, trained.name, described, path)
        self._restored = restored

    def _empty(self) -> dict[str, Any]:
        """Returns empty tensors of all kinds, which TensorFlow's reader replaces."""
        trained = self.sparring_table
        state = trained.agent.container.tables[trained.name].computing_dtype
        dtypes = {**_DTYPES, _STATE: tf.as_dtype(state)}
        return {name: tf.zeros([0], dtype) for name, dtype in dtypes.items()}

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        self._check_eager("restore")
        trained = self.sparring_table
        tensors = dict(restored_tensors)
        described = parse_description(tensors.pop(TABLE_TENSOR).numpy(), trained.name)
        arrays = {field: np.array(tensors.pop(name)) for name, field in _ARRAYS.items()}
        rows = TableRows(described, **arrays)
        prefix = "" if self._restored is None else self._restored.prefix
        restore_rows(trained.agent.container, trained.name, rows, partial(rows_path, prefix))
        trained.agent.on_rows_replaced(trained.name)
        return super()._restore_from_tensors(tensors)

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        raise UnsupportedError(
            f"rows of table {self.sparring_table.name!r} cannot be copied for an asynchronous "
            "checkpoint; leave experimental_enable_async_checkpoint out, or save "
            "during the steps with container.save(url, blocking=False)",
            table=self.sparring_table.name,
        )

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> dict[str, Any]:
        children = dict(super()._trackable_children(save_type, **options))
        if save_type == "savedmodel":
            # Every object that contains the anchor finds its rows by these numbers.
            numbers = self.sparring_table.agent.numbers
            children |= {f"lookup_{place}": each for place, each in enumerate(numbers)}
        return children

    def _check_eager(self, verb: str) -> None:
        # In a graph, the rows would be constants from the time of tracing.
        if not tf.executing_eagerly():
            raise UnsupportedError(
                f"rows of table {self.sparring_table.name!r} cannot be part of a graph; "
                f"{verb} checkpoints outside of tf.function",
                table=self.sparring_table.name,
            )


def _operator(name: str) -> Callable[..., Any]:
    def operator(anchor: Any, *others: Any) -> Any:
        return getattr(tf.convert_to_tensor(anchor), name)(*others)

    return operator


# Keras's operators use `value` and would skip `__tf_tensor__`.
for _name in (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "matmul"),
    *("neg", "abs", "getitem"),
):
    setattr(Anchor, f"__{_name}__", _operator(f"__{_name}__"))


def _without_gradient(value: Any, table: str) -> Any:
    """Returns the same tensor, whose gradient raises `UnsupportedError`."""

    @tf.custom_gradient  # type: ignore[misc,unused-ignore]
    def identity(value: Any) -> Any:
        def refuse(*_: Any) -> Any:
            raise UnsupportedError(
                f"table {table!r}: the loss contains all variables of the model, as in a penalty, but "
                "the anchor of a table has no elements, so the penalty would not include the rows. Sum "
                "over the variables for which sparring_tf.trained_table is None, and over the "
                "embeddings of the batch; or let distribute keep the layer unchanged",
                table=table,
            )

        return tf.identity(value), refuse

    return identity(value)


def trained_table(variable: Any) -> TrainedTable | None:
    """Returns the table that a variable represents, or None if it is not an anchor.

    Args:
        variable: a variable of a model.
    """
    return getattr(variable, "sparring_table", None)
