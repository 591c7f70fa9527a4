"""Finds the columns that describe an item or a user, from the training rows.

A click model has columns of the item (brand, price), of the user (age) and of neither (hour). The
data may contain no row of an item together with a user. To score such a pair, the item's columns
are taken from rows of the item, and the user's columns from rows of the user. A column belongs to
the item if consecutive rows of an item nearly always have the same value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparring_train.columns import Column, ColumnBatch, Schema
from sparring_train.loop.item_catalog import ItemCatalog

__all__ = ["KnownColumns", "read_items_and_user", "known_columns"]

Ids = npt.NDArray[np.int64]

_MAX_CHANGES = 0.05
"""A column belongs to the item if its value differs from the item's previous row in at most this
share of the rows."""
_PENDING = 1 << 16
_ODD = 0x1E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class KnownColumns:
    """Columns of items and of one user, from their last rows."""

    items: ColumnBatch
    """One example per distinct item. It contains all columns, of which only those in `of_item` are
    valid."""
    of_item: frozenset[str]
    """Names of features and numbers that belong to the item."""
    of_user: frozenset[str]
    user: ColumnBatch | None
    """The user's last row; None if there is none."""


def known_columns(
    batches: Iterable[ColumnBatch], schema: Schema, item: str, user: str | None, user_id: int | None
) -> KnownColumns:
    """Reads all training rows once.

    Args:
        batches: all training rows.
        schema: columns of the rows.
        item: the feature of items.
        user: the feature of users, if there is one.
        user_id: the user whose columns are returned.

    Raises:
        ValueError: no row has an item.
    """
    features = [each.name for each in schema.features]
    columns = [name for name in (*features, *schema.numbers) if name not in (item, user)]
    catalogue = ItemCatalog([item, *(name for name in features if name != item)])
    by_item, by_user = _Changes(len(columns)), _Changes(len(columns))
    last: ColumnBatch | None = None
    for batch in batches:
        if user is not None:
            rows = batch.take(batch.ids[user].counts == 1)
            by_user.add(rows.ids[user].ids, _hashes(rows, schema, columns))
            if user_id is not None and len(own := _select_rows(batch, user, user_id)):
                last = own.take(slice(len(own) - 1, None))
        rows = batch.take(batch.ids[item].counts == 1)
        one_each = {**rows.ids, item: Column(rows.ids[item].ids)}
        by_item.add(rows.ids[item].ids, _hashes(rows, schema, columns))
        catalogue.add(ColumnBatch(one_each, rows.numbers))
    changes = by_item.shares(), by_user.shares()
    of = {
        name: "item" if of_item <= of_user else "user"
        for name, of_item, of_user in zip(columns, *changes, strict=True)
        if min(of_item, of_user) <= _MAX_CHANGES
    }
    return KnownColumns(
        catalogue.items(),
        frozenset(name for name, owner in of.items() if owner == "item"),
        frozenset(name for name, owner in of.items() if owner == "user"),
        last,
    )


def read_items_and_user(
    batches: Iterable[ColumnBatch],
    names: Sequence[str],
    user: str | None,
    user_id: int | None,
    *,
    history: str | None,
) -> tuple[ColumnBatch, ColumnBatch | None]:
    """Reads all training rows once, for a model that defines which features belong to an item.

    Args:
        batches: all training rows, in the order of the files.
        names: features of an item; the first one is its id.
        user: the feature of users, if there is one.
        user_id: the user whose row is returned.
        history: a feature with the earlier items of each row. Selects the last row among those with
            the longest history.

    Returns:
        Distinct items with the features of their last rows, and the user's last row, if there is one.
    """
    catalogue = ItemCatalog(names)
    last: ColumnBatch | None = None
    longest = 0
    for batch in batches:
        has_item = batch.take(batch.ids[names[0]].counts == 1)
        one_each = {**has_item.ids, names[0]: Column(has_item.ids[names[0]].ids)}
        catalogue.add(replace(has_item, ids=one_each))
        if user is None or user_id is None:
            continue
        own = _select_rows(has_item, user, user_id)
        if not len(own):
            continue
        lengths = np.zeros(len(own), np.int64) if history is None else own.ids[history].counts
        if int(lengths.max()) >= longest:
            longest = int(lengths.max())
            place = len(own) - 1 - int(np.argmax(lengths[::-1]))
            last = own.take(slice(place, place + 1))
    return catalogue.items(), last


def _select_rows(batch: ColumnBatch, user: str, user_id: int) -> ColumnBatch:
    rows = batch.take(batch.ids[user].counts == 1)
    return rows.take(rows.ids[user].ids == user_id)


class _Changes:
    """Counts, for each column, the rows in which its value differs from the previous row of the
    same key."""

    def __init__(self, num_columns: int) -> None:
        self._keys: Ids = np.empty(0, np.int64)
        self._values: Ids = np.empty((0, num_columns), np.int64)
        self._pending: list[tuple[Ids, Ids]] = []
        self._num_pending = 0
        self._num_repeated = 0
        self._num_changed = np.zeros(num_columns, np.int64)

    def add(self, keys: Ids, values: Ids) -> None:
        self._pending.append((keys, values))
        self._num_pending += len(keys)
        if self._num_pending > max(_PENDING, len(self._keys)):
            self._merge()

    def shares(self) -> npt.NDArray[np.float64]:
        """Returns, for each column, the share of rows with a change among rows whose key occurred
        before; 1 if no key is repeated."""
        self._merge()
        if not self._num_repeated:
            return np.ones(len(self._num_changed))
        return self._num_changed / self._num_repeated

    def _merge(self) -> None:
        keys = np.concatenate([self._keys, *(each for each, _ in self._pending)])
        values = np.concatenate([self._values, *(each for _, each in self._pending)])
        order = np.argsort(keys, kind="stable")
        keys, values = keys[order], values[order]
        is_same = keys[1:] == keys[:-1]
        self._num_repeated += int(np.count_nonzero(is_same))
        self._num_changed += ((values[1:] != values[:-1]) & is_same[:, None]).sum(0)
        is_last = np.append(~is_same, True)[: len(keys)]
        self._keys, self._values = keys[is_last], values[is_last]
        self._pending, self._num_pending = [], 0


def _hashes(batch: ColumnBatch, schema: Schema, columns: list[str]) -> Ids:
    """Returns a hash of the value of each column in each row, ``(b, columns)``."""
    made = np.empty((len(batch), len(columns)), np.int64)
    for place, name in enumerate(columns):
        if name in batch.ids:
            column = batch.ids[name]
            # Includes the position of an id in its list, because lists in another order differ.
            ends = np.cumsum(column.counts)
            starts = np.repeat(ends - column.counts, column.counts)
            positions = np.arange(len(column.ids)) - starts
            with np.errstate(over="ignore"):
                mixed = (column.ids ^ (column.ids >> 29)) * (2 * positions + _ODD)
            sums = np.concatenate(([0], np.cumsum(mixed)))
            made[:, place] = sums[ends] - sums[ends - column.counts] + column.counts
        else:
            numbers = batch.numbers[:, schema.numbers.index(name)]
            made[:, place] = np.ascontiguousarray(numbers).view(np.int32)
    return made
