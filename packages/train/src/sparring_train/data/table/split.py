"""Which rows of a table are kept for the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc
from pyarrow import types

from sparring.errors import DataError
from sparring_train.config.table import TableData
from sparring_train.data.split import is_test_row
from sparring_train.data.table.decode import Decoder, RawRows, only

__all__ = ["Split", "make_split", "times_of"]

Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int64]
Read = Callable[[Sequence[str]], Iterator[RawRows]]
"""Reads all rows, of some columns."""

_MOST_TIMES = 200_000_000


class Split(Protocol):
    """Decides row by row."""

    @property
    def columns(self) -> tuple[str, ...]:
        """That it looks at; empty: places of rows are enough."""

    def is_test(self, rows: RawRows) -> Bools:
        """Whether each row is kept for the test, ``(n,)``."""


def make_split(data: TableData, seed: int, read: Read) -> Split:
    """The split that `data.split` describes; may read the columns that it needs.

    Raises:
        DataError: a column does not hold what the split needs.
    """
    split = data.split
    if split.column is not None:
        return _ByColumn((split.column,), split.test)
    if split.leave_one_out is not None:
        return _ByPlace((), _last_of_each(data, split.leave_one_out, read))
    if data.time is not None and split.time_from is not None:
        return _ByTime((data.time,), _parsed(split.time_from, data.time, read))
    if data.time is not None and split.time is not None:
        return _ByTime((data.time,), _quantile(split.time, data.time, read))
    return _ByChance((), split.test_fraction, seed)


@dataclass(frozen=True)
class _ByChance:
    columns: tuple[str, ...]
    fraction: float
    seed: int

    def is_test(self, rows: RawRows) -> Bools:
        return is_test_row(rows.position, len(rows), test_fraction=self.fraction, seed=self.seed)


@dataclass(frozen=True)
class _ByColumn:
    columns: tuple[str, ...]
    test: str

    def is_test(self, rows: RawRows) -> Bools:
        array = rows.columns[self.columns[0]]
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if types.is_floating(array.type):
            is_test = pc.equal(array, float(self.test))
        else:
            is_test = pc.equal(array.cast(pyarrow.string()), self.test)
        flags: Bools = is_test.fill_null(False).to_numpy(zero_copy_only=False)
        return flags


@dataclass(frozen=True)
class _ByTime:
    columns: tuple[str, ...]
    begin: float | int

    def is_test(self, rows: RawRows) -> Bools:
        flags: Bools = times_of(rows, self.columns[0]) >= self.begin
        return flags


@dataclass(frozen=True)
class _ByPlace:
    columns: tuple[str, ...]
    positions: Ids
    """Sorted, of the rows for the test."""

    def is_test(self, rows: RawRows) -> Bools:
        first = int(np.searchsorted(self.positions, rows.position))
        last = int(np.searchsorted(self.positions, rows.position + len(rows)))
        flags = np.zeros(len(rows), np.bool_)
        flags[self.positions[first:last] - rows.position] = True
        return flags


def times_of(rows: RawRows, name: str) -> npt.NDArray[Any]:
    """Times ``(n,)`` as numbers; microseconds since 1970 where the column holds times. Null is 0.

    Raises:
        DataError: it holds neither times nor numbers.
    """
    array, kind = rows.columns[name], rows.columns[name].type
    try:
        if types.is_integer(kind):
            array = array.cast(pyarrow.int64())
        elif types.is_floating(kind):
            array = array.cast(pyarrow.float64())
        else:
            array = array.cast(pyarrow.timestamp("us")).cast(pyarrow.int64())
    except pyarrow.ArrowException as error:
        raise DataError(
            f"{rows.file}, column {name!r}: found {kind}, expected times or numbers: {error}",
            path=rows.file,
            column=name,
        ) from error
    values: npt.NDArray[Any] = array.fill_null(0).to_numpy(zero_copy_only=False)
    return values


def _quantile(part: float, name: str, read: Read) -> float | int:
    """The time from which on rows are the latest `part` of all."""
    times, count = [], 0
    for rows in read((name,)):
        times.append(times_of(rows, name))
        count += len(rows)
        if count > _MOST_TIMES:
            raise DataError(
                f"data.split.time: sorts the times of all rows, of which there are more than "
                f"{_MOST_TIMES:,}; say data.split.time_from"
            )
    joined = np.concatenate(times)
    at = min(int(len(joined) * (1 - part)), len(joined) - 1)
    begin: float | int = np.partition(joined, at)[at].item()
    return begin


def _parsed(text: str, name: str, read: Read) -> float | int:
    rows = next(read((name,)))
    kind = rows.columns[name].type
    try:
        if types.is_integer(kind) or types.is_floating(kind):
            return float(text)
        scalar = pyarrow.scalar(text).cast(pyarrow.timestamp("us"))
        return int(scalar.cast(pyarrow.int64()).as_py())
    except (ValueError, pyarrow.ArrowException) as error:
        raise DataError(
            f"data.split.time_from: found {text!r}, and the column {name!r} holds {kind}: {error}",
            column=name,
        ) from error


def _last_of_each(data: TableData, user: str, read: Read) -> Ids:
    """Places of the last rows of users who have two rows or more, sorted."""
    decoder = Decoder(only(data, categorical=(user,)), None)
    columns = (user,) if data.time is None else tuple(dict.fromkeys((user, data.time)))
    users, times, places, counts = (np.empty(0, np.int64) for _ in range(4))
    for rows in read(columns):
        batch, _ = decoder.decode(rows)
        column = batch.ids[user]
        has_user = column.counts.astype(np.bool_)
        here = np.arange(rows.position, rows.position + len(rows))
        now = here if data.time is None else times_of(rows, data.time)
        users = np.concatenate([users, column.ids])
        times = np.concatenate([times, now[has_user]])
        places = np.concatenate([places, here[has_user]])
        counts = np.concatenate([counts, np.ones(len(column.ids), np.int64)])
        order = np.lexsort((places, times, users))
        users, times, places, counts = (each[order] for each in (users, times, places, counts))
        is_last = np.append(users[1:] != users[:-1], True)[: len(users)]
        begins = np.append(0, np.flatnonzero(is_last)[:-1] + 1)
        counts = np.add.reduceat(counts, begins) if len(counts) else counts
        users, times, places = users[is_last], times[is_last], places[is_last]
    return np.sort(places[counts > 1])
