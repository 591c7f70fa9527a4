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

from sparring import StepContainer
from sparring.errors import UnsupportedError
from sparring.table_holder import TableDeclaration, TableHolder
from sparring_tf import exchanged_lookup, lookup_ops
from sparring_tf.anchors import Anchor, TrainedTable
from sparring_tf.keras_rows import load_rows, save_rows
from sparring_tf.lookup_numbers import LookupNumber

__all__ = ["TableAgent", "TableLayer"]


class TableAgent(TableHolder):
    """The tables of a layer, the container that they live in, and the numbers that ops know them by.

    Args:
        declarations: the layer's tables.
        pooled: of each group of features that are pooled in one call: their tables and poolings.
        container: where they live; None leaves it to the `Optimizer`.
    """

    def __init__(
        self,
        declarations: Sequence[TableDeclaration],
        pooled: Sequence[Sequence[tuple[str, str]]] = (),
        container: StepContainer | None = None,
    ) -> None:
        self._single = {
            each.table.name: LookupNumber(self, [(each.table.name, "sum")]) for each in declarations
        }
        self._pooled = [LookupNumber(self, features) for features in pooled]
        self._is_shown = False
        self.has_optimizer = False
        """Whether a `sparring_tf.Optimizer` was made for these tables."""
        self.anchors: dict[str, Any] = {}
        """Table name → the weight that stands for its rows."""
        super().__init__(declarations, container)

    def _on_joined(self, declarations: Sequence[TableDeclaration]) -> None:
        self._is_shown = False

    def is_direct(self, tables: Sequence[str]) -> bool:
        """Whether ops may read `tables` without asking other ranks.

        Raises:
            ClosedError: the container, or the storage of a table, was closed.
        """
        container = self.container
        container.check_readable(tables)
        if not self._is_shown:
            for each in self.numbers:
                each.publication.show(container.collection(each.features))
            self._is_shown = True
        return container.reads_directly(tables)

    @property
    def numbers(self) -> list[LookupNumber]:
        """Of all that ops of this layer look up in."""
        return [*self._single.values(), *self._pooled]

    def number(self, table: str) -> Any:
        """By which `lookup_ops.gather` knows a table, as a tensor for here and now."""
        return self._single[table].tensor()

    def pooled_number(self, group: int) -> Any:
        """By which `lookup_ops.pool` knows a group of features."""
        return self._pooled[group].tensor()


class TableLayer(keras.layers.Layer):
    """The base of layers that look up in tables."""

    agent: TableAgent

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        _refuse_strategies(self.name)
        # XLA knows nothing of tables; `jit_compile="auto"` asks.
        self.supports_jit = False

    def _hold(self, agent: TableAgent) -> None:
        """Takes the tables of `agent` as this layer's."""
        self.agent = agent
        exchanged_lookup.order_variable()
        for each in agent.declarations:
            self._add_anchor(each.table.name, each.table.dim, each.table.computing_dtype.name)

    def _add_anchor(self, table: str, dim: int, dtype: str) -> None:
        with keras.name_scope(self.name, caller=self):
            anchor = Anchor(TrainedTable(self.agent, table), dim, dtype)
        # As an attribute: Keras and checkpoints find it.
        setattr(self, f"{table}_anchor", anchor)
        self.agent.anchors[table] = anchor

    def build(self, *_: Any) -> None:
        """Nothing is left to be made: no shape of an input matters."""

    @property
    def anchors(self) -> dict[str, Any]:
        """Table name → the weight that stands for its rows."""
        # Not an attribute of the layer: Keras would wrap it.
        return self.agent.anchors

    def num_rows(self) -> dict[str, int]:
        """Table name → rows held on this rank."""
        return {name: self.agent.container.num_rows(name) for name in self.agent.table_names}

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """What Keras calls to save a model or its weights: the rows go among these.

        Raises:
            UnsupportedError: they lie on several ranks, or are too many and Keras writes to no file
                that they could lie beside.
        """
        for i, table in enumerate(self.agent.table_names):
            save_rows(self.agent.container, table, store, i)

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """What Keras calls to load them.

        Raises:
            DataError: the file has no rows, or damaged ones.
            SnapshotError: the snapshot beside it is missing, damaged or another one.
            InvalidArgumentError: they do not go with the layer.
            CapacityError: the storage has no room for them.
            UnsupportedError: the layer's rows lie on several ranks.
        """
        for i, table in enumerate(self.agent.table_names):
            load_rows(self.agent.container, table, store, i)

    @contextmanager
    def _refused_by_all(self, tables: Sequence[str], training: bool | None) -> Iterator[None]:
        """What the block refuses before a lookup in `tables` all ranks refuse: the others have begun it.

        A graph is made before any lookup begins, so there this rank alone refuses.
        """
        try:
            yield
        except Exception as error:
            container = self.agent.container
            if tf.executing_eagerly() and not container.reads_directly(tables):
                nothing = [(table, np.empty(0, np.int64)) for table in tables]
                container.lookup_all(nothing, is_registered=bool(training), refusal=error)
            raise

    def _gathered(self, requests: Sequence[tuple[str, Any]], training: bool | None) -> list[Any]:
        """One embedding for each id: of ``(…)`` int64 of a table, ``(…, dim)``."""
        anchors = self.anchors
        if not self.agent.is_direct([table for table, _ in requests]):
            container = self.agent.container
            return exchanged_lookup.gather(container, requests, anchors, bool(training))
        found = []
        for table, ids in requests:
            anchor = anchors[table].value
            found.append(lookup_ops.gather(ids, anchor, anchor.handle, self.agent.number(table)))
        return found

    def _converted(self, found: Any) -> Any:
        """Embeddings in the dtype that the layer computes in."""
        # A conversion to the same dtype takes as long as looking up ten ids.
        dtype = self.compute_dtype
        return found if found.dtype.name == dtype else tf.cast(found, dtype)


def _refuse_strategies(layer: str) -> None:
    if tf.distribute.has_strategy():
        strategy = type(tf.distribute.get_strategy()).__name__
        raise UnsupportedError(
            f"layer {layer!r} holds tables, whose rows a {strategy} of tf.distribute cannot copy to "
            "its replicas; start one process a rank instead, as mpiexec -n 4 python …, and give the "
            "layers a container of these ranks",
            layer=layer,
        )
