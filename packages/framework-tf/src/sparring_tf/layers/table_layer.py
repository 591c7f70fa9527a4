"""Base class of layers that look up embeddings in tables.

    ids ──► op: core's native lookup ──► embeddings ──► model, loss
                                                           │
    Optimizer.apply  ◄── tf.IndexedSlices(gradients, ids) of the anchor ◄┘

Rows are not weights of the layer. Instead, each table has an anchor, a trainable weight of shape (0, dim)
that receives the gradients of all rows: an optimizer that trains the anchor trains the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# TensorFlow's own ops use this to detect tracing for XLA; there is no public function.
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_tf.layers.keras_names import check_attribute
from sparring_tf.lookup import exchanged_lookup, lookup_ops
from sparring_tf.lookup.strategies import reject_strategies
from sparring_tf.lookup.table_agent import TableAgent
from sparring_tf.program import lookups as program_lookups
from sparring_tf.saving.anchors import Anchor, TrainedTable
from sparring_tf.saving.keras_files import check_file_contains_rows
from sparring_tf.saving.keras_rows import load_rows, save_rows

__all__ = ["TableLayer", "share_if_old"]


class TableLayer(keras.layers.Layer):
    """Base class of layers that look up embeddings in tables."""

    agent: TableAgent

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        reject_strategies(f"layer {self.name!r} has tables")
        # XLA cannot compile lookups. Keras reads this for `jit_compile="auto"`.
        self.supports_jit = False

    def _set_agent(self, agent: TableAgent) -> None:
        """Sets the agent, and creates an anchor for each of its tables."""
        self.agent = agent
        exchanged_lookup.order_variable()
        for each in agent.declarations:
            self._add_anchor(each.table.name, each.table.dim, each.table.computing_dtype.name)
        for anchor in agent.anchors.values():
            # The argument of the constructor was set before the anchors existed.
            anchor.trainable = self.trainable

    def _add_anchor(self, table: str, dim: int, dtype: str) -> None:
        with keras.name_scope(self.name, caller=self):
            anchor = Anchor(TrainedTable(self.agent, table), dim, dtype)
        # An attribute, so that Keras and checkpoints find it.
        setattr(self, f"{table}_anchor", anchor)
        self.agent.anchors[table] = anchor

    def build(self, *_: Any) -> None:
        """Does nothing, because the layer does not depend on the shape of its inputs."""

    def __getattr__(self, name: str) -> Any:
        # Only called for missing attributes, and for properties that raise AttributeError.
        if not hasattr(type(self), name):
            check_attribute(type(self).__name__, name)
        return object.__getattribute__(self, name)

    @property
    def anchors(self) -> dict[str, Any]:
        """Table name → the weight that receives the gradients of its rows."""
        # Stored in the agent, because Keras would wrap an attribute of the layer.
        return self.agent.anchors

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Compares results of `get_weights`, which contain no rows, with the rows.

        Args:
            weights: a result of `get_weights`.

        Raises:
            InvalidArgumentError: `weights` contain a matrix, as of a Keras layer.
        """
        shapes = [tuple(np.shape(each)) for each in weights]
        expected = [tuple(each.shape) for each in self.weights]
        if len(shapes) == len(expected) and shapes != expected:
            raise InvalidArgumentError(
                f"set_weights of layer {self.name!r}: found shapes {shapes}, expected those of anchors, "
                f"{expected}, because rows are not weights; to set rows, call "
                f"optimizer.container.assign({self.agent.table_names[0]!r}, ids, matrix) of the "
                "sparring_tf.Optimizer, whose rows belong to the ids in order"
            )
        super().set_weights(list(weights))

    def num_rows(self) -> dict[str, int]:
        """Returns table name → number of rows on this rank."""
        return {name: self.agent.container.num_rows(name) for name in self.agent.table_names}

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration of the layer.

        Raises:
            UnsupportedError: Keras is writing a file that cannot contain rows.
        """
        check_file_contains_rows(self.name)
        return {**super().get_config(), "shared": self.agent.shared}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Creates a layer from the result of `get_config`.

        Args:
            config: result of `get_config`.
        """
        return super().from_config(share_if_old(config))

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Saves the rows. Keras calls it when it saves a model or its weights.

        Raises:
            UnsupportedError: the rows are on several ranks, or they are too large for the file and
                cannot be stored next to it.
            InvalidArgumentError: the dense weights are from an older step.
        """
        self.agent.check_versions()
        for i, table in enumerate(self.agent.table_names):
            self.agent.warn_about_unfinished_step(table)
            save_rows(self.agent.container, table, store, i)

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Loads the rows. Keras calls it when it loads a model or its weights.

        Raises:
            DataError: the rows are missing in the file, or damaged.
            SnapshotError: the snapshot next to the file is missing, damaged or belongs to another save.
            InvalidArgumentError: the rows do not match the layer.
            CapacityError: the storage has no capacity for the rows.
            UnsupportedError: the layer's rows are on several ranks.
        """
        for i, table in enumerate(self.agent.table_names):
            load_rows(self.agent.container, table, store, i)
            self.agent.on_rows_replaced(table)

    @contextmanager
    def _errors_on_all_ranks(self, tables: Sequence[str], training: bool | None) -> Iterator[None]:
        """Reports an error of the block to all ranks, which have started a lookup in `tables`.

        In a graph no lookup has started yet, so the error is raised only on this rank.
        """
        try:
            reject_strategies(f"lookup of layer {self.name!r}")
            if not tf.executing_eagerly():
                _reject_compilation(self.name)
            yield
        except Exception as error:
            container = self.agent.container
            if tf.executing_eagerly() and not container.reads_directly(tables):
                nothing = [(table, np.empty(0, np.int64)) for table in tables]
                container.lookup_all(nothing, is_registered=bool(training), own_error=error)
            raise

    def _gather(self, requests: Sequence[tuple[str, Any]], training: bool | None) -> list[Any]:
        """Returns embeddings ``(…, dim)`` for each pair of a table and int64 ids ``(…)``."""
        anchors = self.anchors
        if program_lookups.is_traced():
            return [
                program_lookups.gather(ids, table, anchors[table].value) for table, ids in requests
            ]
        if not self.agent.is_direct([table for table, _ in requests]):
            container = self.agent.container
            check = self.agent.check_versions
            return exchanged_lookup.gather(container, requests, anchors, bool(training), check)
        found = []
        for table, ids in requests:
            anchor = anchors[table].value
            found.append(lookup_ops.gather(ids, anchor, anchor.handle, self.agent.number(table)))
        return found

    def _to_compute_dtype(self, found: Any) -> Any:
        """Casts embeddings to the layer's compute dtype."""
        # A cast to the same dtype would take as long as a lookup of ten ids.
        dtype = self.compute_dtype
        return found if found.dtype.name == dtype else tf.cast(found, dtype)


def share_if_old(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration whose tables are shared if it is from a release that always shared them."""
    return {"shared": True, **config} if "storage" in config else dict(config)


def _reject_compilation(layer: str) -> None:
    """Rejects a function that XLA will compile, before XLA raises an error that is hard to understand."""
    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise UnsupportedError(
            f"layer {layer!r} is called in a tf.function with jit_compile=True, but XLA cannot compile "
            "lookups, because the rows are outside the graph; leave jit_compile out, or compile only a "
            "function that takes the embeddings",
            layer=layer,
        )
