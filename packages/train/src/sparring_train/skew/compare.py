"""Joins the rows that a service logged with rows of the training data, and compares their columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow

from sparring.errors import DataError, InvalidArgumentError
from sparring_train.skew.files import ColumnFile, find_column_files
from sparring_train.skew.values import Values, read_values

__all__ = ["ColumnSkew", "Difference", "SkewReport", "compare_files"]

Ids = npt.NDArray[np.int64]

_OF_LOG = ("request_id", "served_time", "served_version")
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Difference:
    """A row whose values differ.

    Args:
        served_row: Number of the row in the log, from 0.
        trained_row: Number of the row in the data of the training, from 0.
        served: Value that the service logged.
        trained: Value in the data of the training.
    """

    served_row: int
    trained_row: int
    served: Any
    trained: Any


@dataclass(slots=True)
class ColumnSkew:
    """Result for one column.

    Args:
        name: Name of the column.
        num_compared: Number of compared values.
        num_differing: Number of values that differ in at least one bit.
        examples: First rows with differences.
    """

    name: str
    num_compared: int = 0
    num_differing: int = 0
    examples: list[Difference] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SkewReport:
    """Result of a comparison.

    Args:
        num_served: Number of rows in the log.
        num_joined: Number of these that have a row in the data of the training.
        columns: Results of the columns that both contain.
        only_served: Columns that only the log contains.
        only_trained: Columns that only the data of the training contain.
        num_without_sample: Number of requests without a sample in the log, which were left out.
    """

    num_served: int
    num_joined: int
    columns: list[ColumnSkew]
    only_served: list[str]
    only_trained: list[str]
    num_without_sample: int

    @property
    def differs(self) -> bool:
        """Whether any value differs."""
        return any(each.num_differing for each in self.columns)


def compare_files(
    served: str,
    trained: str,
    *,
    keys: Sequence[str] = (),
    columns: Sequence[str] = (),
    max_examples: int = 3,
) -> SkewReport:
    """Compares a log with the data of the training.

    If a log contains samples, requests without a sample are left out, for example those of other clients
    and of the other shards of a service.

    Args:
        served: File or folder of the log.
        trained: File or folder of the data of the training, Parquet or Arrow.
        keys: Columns by which rows are joined, ``NAME`` or ``SERVED=TRAINED``; none: in order of rows.
        columns: Columns to compare; none: all that both contain, except the keys.
        max_examples: Maximum number of examples per column.

    Raises:
        DataError: A file cannot be read, rows cannot be joined, or there is no column to compare.
    """
    logged, trainings = find_column_files(served), find_column_files(trained)
    of_samples = [each for each in logged if each.has_sample]
    num_without_sample = 0
    if of_samples:
        num_without_sample = sum(each.num_rows for each in logged if not each.has_sample)
        logged = of_samples
    pairs = [(each.partition("=")[0], each.rpartition("=")[2]) for each in keys]
    logged_names = _names(logged)
    trained_names = _names(trainings)
    for side, names, used in (
        (served, logged_names, [ours for ours, _ in pairs]),
        (trained, trained_names, [theirs for _, theirs in pairs]),
    ):
        for name in used:
            if name not in names:
                raise InvalidArgumentError(
                    f"skew: --key: {side} has no column {name!r}; it has {', '.join(names)}"
                )
    joined = {*_OF_LOG, *(name for pair in pairs for name in pair)}
    shared = [each for each in logged_names if each in trained_names and each not in joined]
    missing = [each for each in columns if each not in shared]
    if missing or not shared:
        raise InvalidArgumentError(
            f"skew: {missing[0] if missing else 'no column'} is in both {served} ("
            f"{', '.join(logged_names)}) and {trained} ({', '.join(trained_names)}); rename columns, or "
            "choose others with --columns"
        )
    places = list(_join(logged, trainings, pairs))
    num_joined = sum(int((each >= 0).sum()) for each in places)
    num_served = sum(each.num_rows for each in logged)
    if not num_joined:
        raise DataError(
            f"skew: none of the {num_served:,} rows of {served} has a row in {trained}; check --key"
        )
    compared = [
        _compare_column(name, logged, trainings, places, max_examples) for name in columns or shared
    ]
    return SkewReport(
        num_served,
        num_joined,
        compared,
        [each for each in logged_names if each not in trained_names and each not in joined],
        [each for each in trained_names if each not in logged_names and each not in joined],
        num_without_sample,
    )


def _names(files: Sequence[ColumnFile]) -> list[str]:
    return list(dict.fromkeys(name for each in files for name in each.names))


def _join(
    logged: Sequence[ColumnFile], trainings: Sequence[ColumnFile], pairs: Sequence[tuple[str, str]]
) -> Iterator[Ids]:
    """Yields, per file of the log, the row of the training of each of its rows; -1 if it has none."""
    if not pairs:
        counts = [sum(each.num_rows for each in files) for files in (logged, trainings)]
        if counts[0] != counts[1]:
            raise DataError(
                f"skew: rows are compared in their order, but the log has {counts[0]:,} and the data of "
                f"the training {counts[1]:,}; give a column that both have: --key request_id"
            )
        begin = 0
        for file in logged:
            yield np.arange(begin, begin + file.num_rows)
            begin += file.num_rows
        return
    theirs = [theirs for _, theirs in pairs]
    known = np.concatenate([_keys(each, theirs) for each in trainings])
    order = np.argsort(known, kind="stable")
    ordered = known[order]
    repeated = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(repeated):
        first, second = sorted(order[repeated[0] : repeated[0] + 2].tolist())
        raise DataError(
            f"skew: rows {first:,} and {second:,} of the data of the training have the same "
            f"{', '.join(theirs)}; add a further column that tells them apart: --key item"
        )
    for file in logged:
        wanted = _keys(file, [ours for ours, _ in pairs])
        at = np.minimum(np.searchsorted(ordered, wanted), max(len(ordered) - 1, 0))
        is_known = ordered[at] == wanted if len(ordered) else np.zeros(len(wanted), np.bool_)
        yield np.where(is_known, order[at] if len(ordered) else 0, -1)


def _keys(file: ColumnFile, names: Sequence[str]) -> Ids:
    """Returns one int64 per row. Two rows with different keys have the same with a chance of 2^-64."""
    found = np.zeros(file.num_rows, np.uint64)
    for number, name in enumerate(names):
        if name not in file.names:
            raise DataError(
                f"skew: {file.path} has no column {name!r}, by which rows are joined; remove the file, "
                "or choose another --key"
            )
        values = read_values(file.column(name), name, is_served=True)
        if values.lengths is not None or values.has_numbers:
            raise DataError(
                f"skew: {file.path}: the key {name!r} must be one integer or string per row, without "
                "missing values; choose another --key"
            )
        ids = values.values.view(np.uint64)
        found = ids if not number else (found ^ (found >> np.uint64(31))) * _MIX + ids
    return found.view(np.int64)


def _compare_column(
    name: str,
    logged: Sequence[ColumnFile],
    trainings: Sequence[ColumnFile],
    places: Sequence[Ids],
    max_examples: int,
) -> ColumnSkew:
    arrays = [
        each.column(name) if name in each.names else pyarrow.nulls(each.num_rows)
        for each in trainings
    ]
    all_trained = _concatenate([read_values(each, name, is_served=False) for each in arrays])
    result = ColumnSkew(name)
    begin = 0
    for file, rows in zip(logged, places, strict=True):
        if name in file.names:
            array = file.column(name)
            mine = np.flatnonzero(rows >= 0)
            served = read_values(array, name, is_served=True)
            trained = all_trained
            if len(mine) < len(rows):
                served = served.take(mine)
            if len(mine) != len(trained) or not np.array_equal(rows[mine], np.arange(len(mine))):
                trained = trained.take(rows[mine])
            compared, differing = _count_differences(served, trained)
            result.num_compared += int(compared.sum())
            result.num_differing += int(differing.sum())
            room = max_examples - len(result.examples)
            for at in np.flatnonzero(differing)[:room].tolist():
                place = int(rows[mine[at]])
                result.examples.append(
                    Difference(
                        begin + int(mine[at]),
                        place,
                        array[int(mine[at])].as_py(),
                        _value_at(arrays, place),
                    )
                )
        begin += file.num_rows
    return result


def _concatenate(parts: Sequence[Values]) -> Values:
    if len(parts) == 1:
        return parts[0]
    lengths = None
    if any(each.lengths is not None for each in parts):
        lengths = np.concatenate(
            [
                np.ones(len(each), np.int64) if each.lengths is None else each.lengths
                for each in parts
            ]
        )
    given = [each for each in parts if len(each.values)]
    if len({each.has_numbers for each in given}) > 1 and all(each.may_be_ids for each in given):
        given = [each.as_ids() for each in given]
    values = np.concatenate([each.values for each in given or parts])
    return Values(values, lengths, any(each.is_list for each in parts))


def _count_differences(served: Values, trained: Values) -> tuple[Ids, Ids]:
    """Returns the number of compared and of differing values per row."""
    if served.has_numbers or not trained.may_be_ids:
        is_list = served.is_list or trained.is_list
        served, trained = served.as_numbers(is_list=is_list), trained.as_numbers(is_list=is_list)
    else:
        trained = trained.as_ids()
    if served.lengths is None and trained.lengths is None:
        return np.ones(len(served), np.int64), (served.values != trained.values).astype(np.int64)
    ours = np.ones(len(served), np.int64) if served.lengths is None else served.lengths
    theirs = np.ones(len(trained), np.int64) if trained.lengths is None else trained.lengths
    compared = np.maximum(ours, theirs)
    differing = np.where(ours == theirs, 0, compared)
    same = np.flatnonzero(ours == theirs)
    rows = np.repeat(same, ours[same])
    is_unequal = served.take(same).values != trained.take(same).values
    differing += np.bincount(rows[is_unequal], minlength=len(ours)).astype(np.int64)
    # A row in which a value is missing on both sides was compared, too.
    return np.maximum(compared, 1), differing


def _value_at(arrays: Sequence[Any], row: int) -> Any:
    for array in arrays:
        if row < len(array):
            return array[row].as_py()
        row -= len(array)
    raise AssertionError("the row is in one of the arrays")
