"""The tables of a layer, and the numbers that ops know them by."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Sequence
from typing import Any

from sparring import StepContainer
from sparring.adapter import TableDeclaration, TableGroup
from sparring.errors import InvalidArgumentError
from sparring_tf.lookup.lookup_numbers import LookupNumber
from sparring_tf.lookup.row_versions import RowVersion, VersionedWeight, get_version, record_change

__all__ = ["TableAgent"]


class TableAgent(TableGroup):
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
        self._owner = secrets.token_hex(8)
        self._refusals: dict[str, str] = {}
        """Table name → why its rows do not go with the dense weights."""
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
        self.check_versions()
        if not self._is_shown:
            self._show()
        return container.reads_directly(tables)

    def _show(self) -> None:
        for each in self.numbers:
            each.publication.show(self.container.collection(each.features))
        self._is_shown = True

    # -- which rows go with the dense weights

    def with_version(self, table: str, values: Any) -> VersionedWeight:
        """The value of a table's anchor, with the version of its rows."""
        return VersionedWeight.of(values, self._version(table), self._owner)

    def on_weights_set(self, table: str, values: Any) -> None:
        """Compares weights that Keras sets with the rows: older ones are refused by the next lookup.

        Values of another layer's anchor leave the rows as they are, and a warning says so.
        """
        wanted, current = getattr(values, "version", None), self._version(table)
        if wanted is None or getattr(values, "owner", "") != self._owner:
            if wanted is None or wanted.number or current.number:
                warnings.warn(
                    f"set_weights: rows are no part of get_weights, so those of table {table!r} "
                    "stay as they are; copy a model with its rows by model.save_weights("
                    "'….weights.h5') and load_weights",
                    stacklevel=4,
                )
            return
        if wanted.number == current.number:
            self.accept_rows([table])
            return
        since = " and have been loaded since" if wanted.step == current.step else ""
        self._refusals[table] = (
            f"the weights that were set are of step {wanted.step}, and the rows of table {table!r} of "
            f"step {current.step}{since}: rows are no part of get_weights, and a model of both never "
            "existed. Bring the rows back too: sparring_tf.EarlyStopping(…) in place of Keras's, or "
            "model.load_weights(…) of a file that ModelCheckpoint saved then; to set dense weights "
            "alone, assign those for which sparring_tf.trained_table is None"
        )
        for each in self.numbers:
            each.publication.refuse(self._refusals[table])

    def check_versions(self) -> None:
        """Refuses lookups while the dense weights are older than the rows.

        Raises:
            InvalidArgumentError: they are.
        """
        if self._refusals:
            raise InvalidArgumentError(next(iter(self._refusals.values())))

    def on_rows_replaced(self, table: str) -> None:
        """Rows were loaded, which go with the dense weights as they are."""
        record_change(self.container, [table])
        self.accept_rows([table])

    def accept_rows(self, tables: Sequence[str]) -> None:
        """The rows of `tables` go with the dense weights."""
        refused = [self._refusals.pop(table, None) for table in tables]
        if any(refused) and not self._refusals:
            self._show()

    def _version(self, table: str) -> RowVersion:
        # Asking for a container would make one.
        return get_version(self.container, table) if self.has_container else RowVersion()

    @property
    def numbers(self) -> list[LookupNumber]:
        """Of all that ops of this layer look up in."""
        return [*self._single.values(), *self._pooled]

    def number(self, table: str) -> Any:
        """By which `lookup_ops.gather` knows a table, as a tensor for here and now."""
        return self._single[table].tensor()

    @property
    def pooled_features(self) -> list[tuple[str, str]]:
        """Table and pooling of each feature that is pooled."""
        return [feature for number in self._pooled for feature in number.features]

    def pooled_number(self, group: int) -> Any:
        """By which `lookup_ops.pool` knows a group of features."""
        return self._pooled[group].tensor()
