"""`ItemCatalog`: all items with their features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sparring_train.columns import Column, ColumnBatch, Schema

__all__ = ["ItemCatalog", "with_features"]

_PENDING = 1 << 16
"""Minimum number of new examples before items are sorted again."""


class ItemCatalog:
    """Distinct items of examples, each with its features in the last example that contains it.

    Args:
        names: features of an item. The first one is its id, of which each example has exactly one.
        longest: a list feature in `names`. Examples with a longer list are preferred to later ones.
    """

    def __init__(self, names: Sequence[str], *, longest: str | None = None) -> None:
        self._names, self._longest = names, longest
        self._items: ColumnBatch | None = None
        self._pending: list[ColumnBatch] = []

    def add(self, batch: ColumnBatch) -> None:
        """Adds the items of further examples."""
        features = {name: batch.ids[name] for name in self._names}
        self._pending.append(ColumnBatch(features, numbers=batch.numbers))
        known = 0 if self._items is None else len(self._items)
        if sum(map(len, self._pending)) > max(_PENDING, known):
            self._merge()

    def items(self) -> ColumnBatch:
        """Returns all items, sorted by id, with their features and the numbers of their examples.

        Raises:
            ValueError: no batch was added.
        """
        self._merge()
        if self._items is None:
            raise ValueError("there are no examples to take items from")
        return self._items

    def _merge(self) -> None:
        if not self._pending:
            return
        known = [] if self._items is None else [self._items]
        joined = ColumnBatch.joined([*known, *self._pending])
        ids = joined.ids[self._names[0]].ids
        if self._longest is None:
            _, from_end = np.unique(ids[::-1], return_index=True)
            last = len(ids) - 1 - from_end
        else:
            order = np.lexsort((joined.ids[self._longest].counts, ids))
            last = order[np.append(ids[order[1:]] != ids[order[:-1]], True)[: len(ids)]]
        self._items, self._pending = joined.take(last), []


def with_features(items: ColumnBatch, schema: Schema) -> Mapping[str, Column]:
    """Returns columns for all features. Columns that do not describe an item are empty or 0."""
    filled = {}
    for feature in schema.features:
        if feature.name in items.ids:
            filled[feature.name] = items.ids[feature.name]
        elif feature.is_list or feature.may_be_missing:
            filled[feature.name] = Column(np.empty(0, np.int64), np.zeros(len(items), np.int64))
        else:
            filled[feature.name] = Column(np.zeros(len(items), np.int64))
    return filled
