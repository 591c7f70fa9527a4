"""The tables of a layer, and the numbers that ops know them by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparring.adapter import StepContainer, TableDeclaration, TableGroup
from sparring_tf.lookup_numbers import LookupNumber

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
