"""Converts Arrow arrays to the ids and numbers that a model gets.

Ids are int64: integers as they are, and strings hashed by `sparring.hash_strings`. Numbers are float32.
The rules are the same as in training (`sparring_train.data.table.decode`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc
from pyarrow import types

from sparring import hash_strings
from sparring.errors import DataError
from sparring_train.data.table.row_groups import without_views
from sparring_train.data.whole_numbers import find_whole_numbers

__all__ = ["Values", "read_values"]


@dataclass(frozen=True, slots=True)
class Values:
    """Values of a column.

    Args:
        values: ``(m,)`` int64 ids or float64 numbers, without missing ones.
        lengths: ``(n,)`` number of values per row; None: one value per row.
        is_list: Whether the column contains lists.
    """

    values: npt.NDArray[Any]
    lengths: npt.NDArray[np.int64] | None = None
    is_list: bool = False

    def __len__(self) -> int:
        return len(self.values if self.lengths is None else self.lengths)

    @property
    def has_numbers(self) -> bool:
        """Whether the values are numbers; otherwise they are ids."""
        return self.values.dtype.kind == "f"

    @property
    def may_be_ids(self) -> bool:
        """Whether all values are ids, or whole numbers that ids with missing values were written as."""
        return not self.has_numbers or bool(find_whole_numbers(self.values).all())

    def as_ids(self) -> Values:
        """Returns the values as int64."""
        return Values(self.values.astype(np.int64, copy=False), self.lengths, self.is_list)

    def as_numbers(self, *, is_list: bool) -> Values:
        """Returns the bits of the values as float32; a missing number is 0, except in lists.

        Args:
            is_list: Whether the column contains lists in the log or in the data of the training.
        """
        with np.errstate(over="ignore"):
            numbers = self.values.astype(np.float64, copy=False).astype(np.float32)
        if self.lengths is None or is_list:
            return Values(numbers.view(np.int32), self.lengths, is_list)
        filled = np.zeros(len(self.lengths), np.float32)
        filled[self.lengths > 0] = numbers
        return Values(filled.view(np.int32))

    def take(self, rows: npt.NDArray[np.int64]) -> Values:
        """Returns the given rows.

        Args:
            rows: ``(k,)`` indices.
        """
        if self.lengths is None:
            return Values(self.values[rows])
        begins = (np.cumsum(self.lengths) - self.lengths)[rows]
        lengths = self.lengths[rows]
        places = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Values(self.values[np.repeat(begins, lengths) + places], lengths, self.is_list)


def read_values(array: Any, name: str, *, is_served: bool) -> Values:
    """Returns the values of a column.

    Args:
        array: Arrow array.
        name: Name of the column, for messages.
        is_served: Whether a service logged the column, so that an empty string is an id, and NaN is a
            number. In the data of the training, both are missing values.

    Raises:
        DataError: The column contains neither ids nor numbers.
    """
    array = without_views(array)
    if types.is_list(array.type) or types.is_large_list(array.type):
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        lengths = lengths.astype(np.int64)
        inner, is_given = _flat(array.flatten(), name, is_served)
        if is_given is not None:
            rows = np.repeat(np.arange(len(lengths)), lengths)
            lengths = np.bincount(rows[is_given], minlength=len(lengths))
        # A sample of a column with missing values has lists of at most one value.
        return Values(inner, lengths, is_list=not is_served or lengths.max(initial=0) > 1)
    values, is_given = _flat(array, name, is_served)
    return Values(values, None if is_given is None else is_given.astype(np.int64))


def _flat(array: Any, name: str, is_served: bool) -> tuple[Any, Any]:
    """Returns the values that are not missing, and a mask of these; None: none is missing."""
    kind = array.type
    if types.is_dictionary(kind):
        ids, is_known = _flat(array.dictionary, name, is_served)
        positions = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        spread = np.zeros(len(array.dictionary) + 1, ids.dtype)
        has_value = np.zeros(len(spread), np.bool_)
        known = np.arange(len(array.dictionary)) if is_known is None else np.flatnonzero(is_known)
        spread[known], has_value[known] = ids, True
        is_given = array.is_valid().to_numpy(zero_copy_only=False) & has_value[positions]
        return spread[positions][is_given], None if is_given.all() else is_given
    is_given = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    present = array.drop_null()
    if types.is_string(kind) or types.is_large_string(kind) or _is_binary(kind):
        values = hash_strings(present)
        if not is_served:
            sizes = pc.binary_length(present).to_numpy(zero_copy_only=False)
            return _drop(values, sizes > 0, is_given)
    elif types.is_floating(kind) or types.is_decimal(kind):
        values = present.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
        if not is_served:
            return _drop(values, ~np.isnan(values), is_given)
    elif types.is_boolean(kind):
        values = present.cast(pyarrow.int64()).to_numpy(zero_copy_only=False)
    elif types.is_integer(kind):
        values = present.to_numpy(zero_copy_only=False)
        values = values.view(np.int64) if kind == pyarrow.uint64() else values.astype(np.int64)
    elif types.is_null(kind):
        return np.empty(0, np.int64), np.zeros(len(array), np.bool_)
    else:
        raise DataError(
            f"skew: the column {name!r} has the type {kind}, expected ids or numbers; leave it out with "
            "--columns",
            column=name,
        )
    return values, is_given


def _is_binary(kind: Any) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _drop(values: Any, is_kept: Any, is_given: Any) -> tuple[Any, Any]:
    if is_kept.all():
        return values, is_given
    if is_given is None:
        return values[is_kept], is_kept
    given = is_given.copy()
    given[np.flatnonzero(is_given)[~is_kept]] = False
    return values[is_kept], given
