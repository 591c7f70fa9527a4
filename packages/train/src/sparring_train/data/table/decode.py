"""Converts Arrow arrays to the columns of a batch. Bad rows raise an error or are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc
from pyarrow import types

from sparring import hash_strings
from sparring.errors import DataError
from sparring_train.columns import Column, ColumnBatch, Feature, Label
from sparring_train.config.sections.columns import ColumnSettings
from sparring_train.config.sections.table import TableData
from sparring_train.data.table.hexadecimal import HEXADECIMAL, parse_hexadecimal
from sparring_train.data.table.text.lists import split_lists
from sparring_train.data.whole_numbers import EXPECTED_ID, find_whole_numbers

__all__ = [
    "SKIP_ADVICE",
    "BadValue",
    "Decoder",
    "HistorySource",
    "RawRows",
    "StringReceiver",
    "make_bad_row_error",
    "select_columns",
]

Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int64]

SKIP_ADVICE = ", or set data.bad_rows: skip"
"""Last part of the message about a bad row."""
_EXPECTED_LABEL: dict[Label | None, str] = {
    "binary": "a label of 0 or 1, for the log loss",
    "number": "a label that is a finite number",
}
_EXPECTED_NUMBER = "a finite number, or null"
_EXPECTED_WEIGHT = "a finite weight of 0 or more"
_EXPECTED_ONE = "an id, because the column is in data.required"
_EXPECTED_HEXADECIMAL = "1 to 16 hexadecimal digits, or nothing, because of data.types"


@dataclass(frozen=True, slots=True)
class BadValue:
    """A value that is invalid in its column."""

    row: int
    """Index of the row in its `RawRows`."""
    column: str | None
    found: str
    expected: str


@dataclass(frozen=True, slots=True)
class RawRows:
    """Consecutive rows of one file."""

    file: str
    first_row: int
    """Row number in messages. It starts at 1, including the header of a CSV file."""
    position: int
    """Position of the first row in all files."""
    num_rows: int
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Name → Arrow array."""
    bad: Sequence[BadValue] = ()
    """Invalid values that the parser found."""
    key: str = ""
    """Name of the file in its data set, which is the same if the data set is moved."""
    index: int = 0
    """Index of the first row in the file, without deleted rows."""

    def __len__(self) -> int:
        return self.num_rows


class StringReceiver(Protocol):
    """Receives ids and the strings that were hashed."""

    def add(self, feature: str, ids: Ids, strings: Any) -> None:
        """Adds ids ``(n,)`` and an Arrow array of their n strings."""


class HistorySource(Protocol):
    """Source of the history feature."""

    @property
    def name(self) -> str:
        """Name of the feature."""

    def column(self, rows: RawRows) -> Column:
        """Returns the histories of some rows."""


@dataclass(slots=True)
class _HashedDictionary:
    strings: Any = None
    ids: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    has_id: Bools | None = None


class Decoder:
    """Converts rows of one stream to batches. Caches the hashes of the last dictionary of each column.

    Args:
        data: the section of the configuration.
        label: see `OpenRequest`.
        strings: receives hashed strings, if given.
        histories: source of the history feature, if given.
    """

    def __init__(
        self,
        data: ColumnSettings,
        label: Label | None,
        strings: StringReceiver | None = None,
        histories: HistorySource | None = None,
    ) -> None:
        self._data = data
        self._label = label if data.label is not None else None
        self._features = [each for each in data.columns.features if each.name in data.categorical]
        self._histories = histories
        self._strings = strings
        self._dictionaries: dict[str, _HashedDictionary] = {}
        self._skips = data.bad_rows == "skip"

    def decode(self, rows: RawRows) -> tuple[ColumnBatch, Bools | None]:
        """Returns a batch of all rows, and a mask of the good rows; None if all are good.

        Raises:
            DataError: a row is bad, and bad rows are not skipped.
        """
        problems = _Problems(rows, self._skips)
        data = self._data
        if data.time_column is not None and data.time_column in rows.columns:
            times = rows.columns[data.time_column]
            if times.null_count:
                is_given = times.is_valid().to_numpy(zero_copy_only=False)
                problems.check(is_given, times, data.time_column, "a time")
        ids = {
            each.name: self._column(rows.columns[each.name], each, problems)
            for each in self._features
        }
        if self._histories is not None:
            ids[self._histories.name] = self._histories.column(rows)
        numbers = np.empty((len(rows), len(data.numeric)), np.float32)
        for at, name in enumerate(data.numeric):
            numbers[:, at] = self._numbers(rows.columns[name], name, problems)
        labels = weights = None
        if self._label is not None and data.label is not None:
            labels = self._labels(rows.columns[data.label], data.label, problems)
        if data.weight is not None:
            array = rows.columns[data.weight]
            values, missing = _floats(array, rows, data.weight, _EXPECTED_WEIGHT)
            is_good = (values >= 0) & (values <= np.finfo(np.float32).max) & ~missing
            problems.check(is_good, array, data.weight, _EXPECTED_WEIGHT)
            weights = np.where(is_good, values, 0).astype(np.float32)
        return ColumnBatch(ids, numbers, labels, weights), problems.is_good

    def _labels(self, array: Any, name: str, problems: _Problems) -> npt.NDArray[np.float32]:
        expected = _EXPECTED_LABEL[self._label]
        if self._data.label_values:
            array, expected = self._numbers_of_texts(array, name, problems)
        elif _is_text(array.type.value_type if types.is_dictionary(array.type) else array.type):
            raise DataError(
                f"{problems.rows.file}, column {name!r}: found the type {array.type}, expected "
                f"{expected}; set data.label_values to their numbers: {{yes: 1, no: 0}}",
                path=problems.rows.file,
                column=name,
            )
        values, missing = _floats(array, problems.rows, name, expected)
        if self._label == "binary":
            is_good = ((values == 0) | (values == 1)) & ~missing
        else:
            is_good = (np.abs(values) <= np.finfo(np.float32).max) & ~missing
        if not is_good.all():
            problems.check(is_good, array, name, expected)
            values = np.where(is_good, values, 0)
        return values.astype(np.float32)

    def _numbers_of_texts(self, array: Any, name: str, problems: _Problems) -> tuple[Any, str]:
        """Returns numbers according to `data.label_values`, or null, and a description of valid texts."""
        meaning = self._data.label_values
        expected = f"one of {', '.join(map(repr, meaning))}, because of data.label_values"
        found = array.dictionary_decode() if types.is_dictionary(array.type) else array
        places = pc.index_in(found.cast(pyarrow.string()), pyarrow.array(list(meaning)))
        problems.check(places.is_valid().to_numpy(zero_copy_only=False), found, name, expected)
        return pyarrow.array(list(meaning.values()), pyarrow.float64()).take(places), expected

    def _numbers(self, array: Any, name: str, problems: _Problems) -> npt.NDArray[Any]:
        values, _ = _floats(array, problems.rows, name, _EXPECTED_NUMBER)
        is_good = np.abs(values) <= np.finfo(np.float32).max
        if not is_good.all():
            problems.check(is_good, array, name, _EXPECTED_NUMBER)
            values = np.where(is_good, values, 0)
        if name in self._data.minimum:
            values = np.maximum(values, self._data.minimum[name])
        if name in self._data.log1p:
            values = values.astype(np.float32)
            return np.copysign(np.log1p(np.abs(values)), values)
        return values

    # -- ids ------------------------------------------------------------------------------

    def _column(self, array: Any, feature: Feature, problems: _Problems) -> Column:
        is_set = "separator" in self._data.model_fields_set
        separator = self._data.find_separator(feature.name) if is_set else None
        element = array.type.value_type if types.is_dictionary(array.type) else array.type
        if feature.is_list and separator is not None and _is_text(element):
            array = split_lists(array.cast(pyarrow.string()), separator, True)
        is_list = types.is_list(array.type) or types.is_large_list(array.type)
        if feature.is_list and types.is_null(array.type):
            return Column(np.empty(0, np.int64), np.zeros(len(array), np.int64))
        if is_list != feature.is_list:
            raise DataError(
                f"{problems.rows.file}, column {feature.name!r}: found {array.type}; "
                + (
                    "add it to data.lists"
                    if is_list
                    else "expected lists; remove it from data.lists"
                ),
                path=problems.rows.file,
                column=feature.name,
            )
        if not is_list:
            ids, has_id = self._ids(array, feature.name, problems, None)
            if has_id is None:
                return Column(ids)
            if feature.name in self._data.missing_ids:
                return Column(np.where(has_id, ids, self._data.missing_ids[feature.name]))
            if not feature.may_be_missing:
                problems.check(has_id, array, feature.name, _EXPECTED_ONE)
                # The row is left out later, so the value does not matter.
                return Column(np.where(has_id, ids, 0))
            return Column(ids[has_id], has_id.astype(np.int64))
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        lengths = lengths.astype(np.int64)
        rows = np.repeat(np.arange(len(lengths)), lengths)
        ids, has_id = self._ids(array.flatten(), feature.name, problems, rows)
        if has_id is None:
            return Column(ids, lengths)
        return Column(ids[has_id], np.bincount(rows[has_id], minlength=len(lengths)))

    def _ids(
        self, array: Any, name: str, problems: _Problems, rows: Ids | None
    ) -> tuple[Ids, Bools | None]:
        """Returns ids of elements, and a mask of elements that have one; None if all have.

        Args:
            array: Arrow array of ids: strings, a dictionary of strings, or integers.
            name: name of the feature.
            problems: receives invalid elements.
            rows: ``(n,)``, the row of each element; None: one element per row.
        """
        if self._data.id_types.get(name) == "hexadecimal" and not types.is_null(array.type):
            return self._of_hexadecimal(array, name, problems, rows)
        if types.is_dictionary(array.type):
            if not _is_text(array.type.value_type):
                return self._ids(array.dictionary_decode(), name, problems, rows)
            return self._of_dictionary(array, name)
        if _is_text(array.type):
            return self._of_strings(array, name)
        has_id = None if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
        if types.is_boolean(array.type):
            array = array.cast(pyarrow.int8())
        if types.is_null(array.type):
            return np.zeros(len(array), np.int64), np.zeros(len(array), np.bool_)
        if types.is_floating(array.type):
            values = array.to_numpy(zero_copy_only=False)  # a null is NaN
            missing = np.isnan(values)
            values = np.where(missing, values.dtype.type(0), values)
            # pandas writes columns of integers that contain nulls as floats.
            is_good = find_whole_numbers(values)
            problems.check(is_good, array, name, EXPECTED_ID, rows)
            ids = np.where(is_good, values, 0).astype(np.int64)
            return ids, ~missing if missing.any() else None
        if not types.is_integer(array.type):
            raise problems.wrong_type(array.type, name, "strings, or whole numbers")
        found = array.fill_null(0) if array.null_count else array
        values = found.to_numpy(zero_copy_only=False)
        if array.type == pyarrow.uint64() and self._data.id_types.get(name) == "unsigned":
            return np.ascontiguousarray(values).view(np.int64), has_id
        if array.type == pyarrow.uint64():
            problems.check(values <= np.uint64(2**63 - 1), array, name, EXPECTED_ID, rows)
        return values.astype(np.int64, copy=False), has_id

    def _of_strings(self, array: Any, name: str) -> tuple[Ids, Bools | None]:
        ids, has_id = _hashed(array)
        if self._strings is not None:
            self._strings.add(name, ids, array)
        return ids, has_id

    def _of_hexadecimal(
        self, array: Any, name: str, problems: _Problems, rows: Ids | None
    ) -> tuple[Ids, Bools]:
        texts = array.dictionary_decode() if types.is_dictionary(array.type) else array
        if not _is_text(texts.type):
            raise problems.wrong_type(array.type, name, "text of hexadecimal digits")
        texts = texts.cast(pyarrow.string())
        has_id = pc.greater(pc.binary_length(texts), 0).fill_null(False)
        flags = has_id.to_numpy(zero_copy_only=False)
        ids = np.zeros(len(texts), np.int64)
        try:
            ids[flags] = parse_hexadecimal(texts.filter(has_id))
        except ValueError:
            # The error does not contain the row.
            is_good = pc.match_substring_regex(texts, HEXADECIMAL).fill_null(False)
            is_good = is_good.to_numpy(zero_copy_only=False)
            problems.check(is_good | ~flags, texts, name, _EXPECTED_HEXADECIMAL, rows)
            ids[is_good] = parse_hexadecimal(texts.filter(pyarrow.array(is_good)))
        return ids, flags

    def _of_dictionary(self, array: Any, name: str) -> tuple[Ids, Bools | None]:
        strings, known = array.dictionary, self._dictionaries.get(name)
        # Every block of a row group contains the same dictionary, which is hashed only once.
        if known is None or not strings.equals(known.strings):
            ids, has_id = self._of_strings(strings, name)
            known = self._dictionaries[name] = _HashedDictionary(strings, ids, has_id)
        indices = array.indices
        is_valid = None
        if indices.null_count:
            is_valid = indices.is_valid().to_numpy(zero_copy_only=False)
            indices = indices.fill_null(0)
            if not len(strings):
                return np.zeros(len(array), np.int64), is_valid
        places = indices.to_numpy(zero_copy_only=False)
        ids = known.ids.take(places)
        if known.has_id is not None:
            has_string = known.has_id.take(places)
            is_valid = has_string if is_valid is None else is_valid & has_string
        return ids, is_valid


class _Problems:
    """Bad rows of one block."""

    def __init__(self, rows: RawRows, skips: bool) -> None:
        self.rows, self._skips = rows, skips
        self.is_good: Bools | None = None
        for each in rows.bad:
            if not skips:
                raise make_bad_row_error(rows.file, rows.first_row + each.row, each)
            self._leave_out(np.array([each.row]))

    def check(
        self, is_good: Bools, array: Any, name: str, expected: str, rows: Ids | None = None
    ) -> None:
        """Raises for the first row that is not good, or leaves such rows out.

        Args:
            is_good: ``(n,)``, for each element.
            array: the n elements, for messages.
            name: name of the column.
            expected: description of valid values, for messages.
            rows: ``(n,)``, the row of each element; None: one element per row.
        """
        if is_good.all():
            return
        places = np.flatnonzero(~is_good)
        in_rows = places if rows is None else rows[places]
        if not self._skips:
            value = array[int(places[0])]
            try:
                found = value.as_py()
            except UnicodeDecodeError:  # Arrow does not check the text of Parquet files
                found = value.as_buffer().to_pybytes()
            bad = BadValue(int(in_rows[0]), name, repr(found), expected)
            raise make_bad_row_error(self.rows.file, self.rows.first_row + bad.row, bad)
        self._leave_out(in_rows)

    def wrong_type(self, found: Any, name: str, expected: str) -> DataError:
        """Returns the error for a column of the wrong type."""
        return DataError(
            f"{self.rows.file}, column {name!r}: found the type {found}, expected {expected}; "
            "convert the column, or remove it from the configuration",
            path=self.rows.file,
            column=name,
            found=str(found),
            expected=expected,
        )

    def _leave_out(self, rows: npt.NDArray[Any]) -> None:
        if self.is_good is None:
            self.is_good = np.ones(len(self.rows), np.bool_)
        self.is_good[rows] = False


def select_columns(data: TableData, **columns: Any) -> TableData:
    """Returns a section in which the given columns are the only ones of the examples."""
    none: dict[str, Any] = {
        "categorical": (),
        "numeric": (),
        "lists": (),
        "log1p": (),
        "share_tables": {},
        "required": (),
    }
    return data.model_copy(
        update={**none, "label": None, "weight": None, "history": None, **columns}
    )


def make_bad_row_error(file: str, row: int, bad: BadValue) -> DataError:
    """Returns the error for a bad row."""
    where = f", column {bad.column!r}" if bad.column is not None else ""
    return DataError(
        f"{file}, row {row}{where}: found {bad.found}, expected {bad.expected}; fix or remove the row"
        f"{SKIP_ADVICE}",
        path=file,
        row=row,
        column=bad.column,
        found=bad.found,
        expected=bad.expected,
    )


def _hashed(strings: Any) -> tuple[Ids, Bools | None]:
    if not strings.null_count:
        sizes = pc.binary_length(strings)
        ids = hash_strings(strings)
        if not len(ids) or pc.min(sizes).as_py() > 0:
            return ids, None
    else:
        sizes = pc.binary_length(strings).fill_null(0)
        ids = hash_strings(strings.fill_null(""))
    return ids, sizes.to_numpy(zero_copy_only=False) > 0


_TEXT_TYPES: tuple[Callable[[Any], bool], ...] = (
    types.is_string,
    types.is_large_string,
    types.is_binary,
    types.is_large_binary,
)


def _is_text(kind: Any) -> bool:
    return any(is_kind(kind) for is_kind in _TEXT_TYPES)


def _floats(
    array: Any, rows: RawRows, name: str, expected: str
) -> tuple[npt.NDArray[np.float64], Bools]:
    """Returns values, with 0 for missing ones, and a mask of missing values (null or NaN)."""
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if not (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_null(kind)
    ):
        raise _Problems(rows, skips=True).wrong_type(kind, name, expected)
    if types.is_boolean(kind):
        array = array.cast(pyarrow.int8())
    values = array.cast(pyarrow.float64(), safe=False)
    if values.null_count:
        values = values.fill_null(np.nan)
    floats = values.to_numpy(zero_copy_only=False)
    missing = np.isnan(floats)
    return (np.where(missing, 0.0, floats) if missing.any() else floats), missing
