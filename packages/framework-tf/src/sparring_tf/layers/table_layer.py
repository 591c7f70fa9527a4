"""The base of layers that look up in tables.

    ids ──► op: core's native lookup ──► embeddings ──► model, loss
                                                           │
    Optimizer.apply  ◄── tf.IndexedSlices(gradients, ids) of the anchor ◄┘

Rows are no weights. Each table has an anchor in their place, a trainable weight of shape (0, dim) that
stands for all of its rows: the gradient flows to it, and who trains the anchor trains the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# TensorFlow's own ops ask in this way whether they are traced for XLA; there is no public name for it.
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from sparring.errors import UnsupportedError
from sparring_tf.layers.keras_names import check_attribute
from sparring_tf.lookup import exchanged_lookup, lookup_ops
from sparring_tf.lookup.table_agent import TableAgent
from sparring_tf.program import lookups as program_lookups
from sparring_tf.saving.anchors import Anchor, TrainedTable
from sparring_tf.saving.keras_files import check_file_contains_rows
from sparring_tf.saving.keras_rows import load_rows, save_rows

__all__ = ["TableLayer"]


class TableLayer(keras.layers.Layer):
    """The base of layers that look up in tables."""

    agent: TableAgent

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        _reject_strategies(self.name)
        # XLA knows nothing of tables; `jit_compile="auto"` asks.
        self.supports_jit = False

    def _set_agent(self, agent: TableAgent) -> None:
        """Takes the tables of `agent` as this layer's."""
        self.agent = agent
        exchanged_lookup.order_variable()
        for each in agent.declarations:
            self._add_anchor(each.table.name, each.table.dim, each.table.computing_dtype.name)
        for anchor in agent.anchors.values():
            # Given to the constructor, it came before there were anchors.
            anchor.trainable = self.trainable

    def _add_anchor(self, table: str, dim: int, dtype: str) -> None:
        with keras.name_scope(self.name, caller=self):
            anchor = Anchor(TrainedTable(self.agent, table), dim, dtype)
        # As an attribute: Keras and checkpoints find it.
        setattr(self, f"{table}_anchor", anchor)
        self.agent.anchors[table] = anchor

    def build(self, *_: Any) -> None:
        """Nothing is left to be made: no shape of an input matters."""

    def __getattr__(self, name: str) -> Any:
        # Called only for names that are not there, and for properties that raise AttributeError.
        if not hasattr(type(self), name):
            check_attribute(type(self).__name__, name)
        return object.__getattribute__(self, name)

    @property
    def anchors(self) -> dict[str, Any]:
        """Table name → the weight that stands for its rows."""
        # Not an attribute of the layer: Keras would wrap it.
        return self.agent.anchors

    def num_rows(self) -> dict[str, int]:
        """Table name → rows held on this rank."""
        return {name: self.agent.container.num_rows(name) for name in self.agent.table_names}

    def get_config(self) -> dict[str, Any]:
        """Configuration of a layer.

        Raises:
            UnsupportedError: Keras writes a file without rows.
        """
        check_file_contains_rows(self.name)
        return dict(super().get_config())

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Called by Keras to save a model or its weights: the rows go among these.

        Raises:
            UnsupportedError: they are on several ranks, or are too many and Keras writes to no file
                that they could be stored next to.
            InvalidArgumentError: the dense weights are of an older step.
        """
        self.agent.check_versions()
        for i, table in enumerate(self.agent.table_names):
            save_rows(self.agent.container, table, store, i)

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Called by Keras to load them.

        Raises:
            DataError: the file has no rows, or damaged ones.
            SnapshotError: the snapshot next to the file is missing, damaged or another one.
            InvalidArgumentError: they do not go with the layer.
            CapacityError: the storage has no room for them.
            UnsupportedError: the layer's rows lie on several ranks.
        """
        for i, table in enumerate(self.agent.table_names):
            load_rows(self.agent.container, table, store, i)
            self.agent.on_rows_replaced(table)

    @contextmanager
    def _errors_on_all_ranks(self, tables: Sequence[str], training: bool | None) -> Iterator[None]:
        """Raises an error of the block on all ranks, before a lookup in `tables` that they have begun.

        A graph is made before any lookup begins, so there this rank alone refuses.
        """
        try:
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
        """One embedding for each id: of ``(…)`` int64 of a table, ``(…, dim)``."""
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
        """Embeddings in the dtype that the layer computes in."""
        # A conversion to the same dtype takes as long as looking up ten ids.
        dtype = self.compute_dtype
        return found if found.dtype.name == dtype else tf.cast(found, dtype)


def _reject_compilation(layer: str) -> None:
    """Rejects a function that XLA will compile, before XLA fails with its own message."""
    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise UnsupportedError(
            f"layer {layer!r} is called in a tf.function with jit_compile=True, and XLA cannot compile "
            "lookups in tables, whose rows are outside of the graph; leave jit_compile out, or give it "
            "to a function that takes the embeddings that the layer found",
            layer=layer,
        )


def _reject_strategies(layer: str) -> None:
    if tf.distribute.has_strategy():
        strategy = type(tf.distribute.get_strategy()).__name__
        raise UnsupportedError(
            f"layer {layer!r} holds tables, whose rows a {strategy} of tf.distribute cannot copy to "
            "its replicas; start one process a rank instead, as mpiexec -n 4 python …, and give the "
            "layers a container of these ranks",
            layer=layer,
        )
