"""Criteo click logs as Parquet: the 40 columns by name, in any order, among others.

Columns are named ``label`` and either ``I1``…``I13``, ``C1``…``C26``, or ``int_1``…``int_13``,
``cat_1``…``cat_26``, or the latter counted from 0. Integers are whole numbers of any type, or
text. Ids are hex text, or whole numbers that are taken as they are. Null, NaN and empty text
are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute
from pyarrow import parquet, types

from sparring.errors import DataError
from sparring_train.data.batches import ClickBatch
from sparring_train.data.criteo_format import (
    NUM_FEATURES,
    NUM_INTEGERS,
    OptionalNumbers,
    click_batch,
    hex_numbers,
    whole_numbers,
)
from sparring_train.data.delimited_text import is_hex_number, is_whole_number, malformed

__all__ = ["read_parquet_rows"]

_ROWS_AT_ONCE = 1 << 14
_SCHEMES = (("I{}", "C{}", 1), ("int_{}", "cat_{}", 1), ("int_{}", "cat_{}", 0))
_LABEL = "a label of 0 or 1"
_INTEGER = "a whole number that fits into 64 bits, or null"
_ID = "1 to 8 hex digits, a whole number from 0, or null"


def read_parquet_rows(path: Path) -> Iterator[ClickBatch]:
    """All rows of one file, in batches of bounded size.

    Raises:
        DataError: the file cannot be read, lacks a column, or holds a value that is none of
            the column's; `row` counts the file's records from 1.
    """
    with _reading(path), parquet.ParquetFile(path) as file:
        names = _column_names(file.schema_arrow.names, path)
        first_row = 1
        for records in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=list(names)):
            yield _RecordReader(path, first_row).read(records, names)
            first_row += records.num_rows


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: cannot be read as Parquet: {error}; check that the file is whole",
            path=str(path),
        ) from error


def _column_names(found: list[str], path: Path) -> tuple[str, ...]:
    schemes = [
        (
            "label",
            *(integer.format(first + at) for at in range(NUM_INTEGERS)),
            *(category.format(first + at) for at in range(NUM_FEATURES)),
        )
        for integer, category, first in _SCHEMES
    ]
    # The scheme that fits best names the column that is missing.
    names = max(schemes, key=lambda scheme: len(set(scheme) & set(found)))
    missing = [name for name in names if name not in found]
    if missing:
        shown = ", ".join(found[:8]) + (", …" if len(found) > 8 else "")
        raise DataError(
            f"{path}: column {missing[0]!r} is missing, found {len(found)} columns ({shown}), "
            f"expected {names[0]}, {names[1]} to {names[13]}, {names[14]} to {names[39]}",
            path=str(path),
            column=missing[0],
            found=found,
        )
    return names


@dataclass(frozen=True, slots=True)
class _RecordReader:
    """Turns one batch of records into arrays, and refuses what does not belong there."""

    path: Path
    first_row: int

    def read(self, records: Any, names: tuple[str, ...]) -> ClickBatch:
        columns = {name: records.column(name) for name in names}
        label = self._whole_numbers(columns[names[0]], names[0], _LABEL)
        is_label = ~label.is_missing & ((label.values == 0) | (label.values == 1))
        self._check(is_label, columns[names[0]], names[0], _LABEL)
        integers = [
            self._whole_numbers(columns[name], name, _INTEGER)
            for name in names[1 : 1 + NUM_INTEGERS]
        ]
        ids = [self._ids(columns[name], name) for name in names[1 + NUM_INTEGERS :]]
        return click_batch(label, integers, ids)

    def _whole_numbers(self, array: Any, name: str, expected: str) -> OptionalNumbers:
        array = _plain(array)
        if types.is_large_binary(array.type):
            self._check_texts(is_whole_number, array, name, expected)
            array = array.cast(pyarrow.int64())
        if types.is_floating(array.type):
            return self._floats(array, name, expected)
        if not types.is_integer(array.type):
            raise self._wrong_type(array, name, expected)
        return self._integers(array, name, expected)

    def _ids(self, array: Any, name: str) -> OptionalNumbers:
        array = _plain(array)
        if types.is_large_binary(array.type):
            try:
                return hex_numbers(array)
            except ValueError:  # It names no row.
                self._check_texts(is_hex_number, array, name, _ID)
                raise
        if not types.is_integer(array.type):
            raise self._wrong_type(array, name, _ID)
        column = self._integers(array, name, _ID)
        self._check(column.values >= 0, array, name, _ID)
        return column

    def _integers(self, array: Any, name: str, expected: str) -> OptionalNumbers:
        if array.type == pyarrow.uint64():
            values = array.fill_null(0).to_numpy(zero_copy_only=False)
            self._check(values <= np.uint64(2**63 - 1), array, name, expected)
        return whole_numbers(array)

    def _floats(self, array: Any, name: str, expected: str) -> OptionalNumbers:
        # A table that met nulls on its way through pandas has whole numbers as floats.
        values = array.cast(pyarrow.float64()).fill_null(np.nan).to_numpy()
        is_missing = np.isnan(values)
        values = np.where(is_missing, 0.0, values)
        is_whole = (values == np.floor(values)) & (np.abs(values) < 2.0**63)
        self._check(is_whole, array, name, expected)
        return OptionalNumbers(values.astype(np.int64), is_missing)

    def _check_texts(
        self, is_valid: Callable[[bytes], bool], array: Any, name: str, expected: str
    ) -> None:
        texts = array.to_pylist()
        flags = np.array([text is None or is_valid(text) for text in texts], np.bool_)
        self._check(flags, array, name, expected)

    def _check(self, is_valid: npt.NDArray[np.bool_], array: Any, name: str, expected: str) -> None:
        if is_valid.all():
            return
        at = int(np.argmin(is_valid))
        found = array[at].as_py()
        shown = found if isinstance(found, bytes) else repr(found)
        raise malformed(self.path, self.first_row + at, name, found=shown, expected=expected)

    def _wrong_type(self, array: Any, name: str, expected: str) -> DataError:
        return DataError(
            f"{self.path}, column {name!r}: found the type {array.type}, expected values that "
            f"are {expected}",
            path=str(self.path),
            column=name,
            found=str(array.type),
            expected=expected,
        )


def _plain(array: Any) -> Any:
    """Without dictionaries; text of all kinds as large_binary, null where empty; booleans as integers."""
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kinds = types.is_string, types.is_large_string, types.is_binary, types.is_large_binary
    if any(is_kind(array.type) for is_kind in kinds):
        array = array.cast(pyarrow.large_binary())
        is_empty = pyarrow.compute.equal(pyarrow.compute.binary_length(array), 0)
        return pyarrow.compute.if_else(is_empty, None, array)
    return array.cast(pyarrow.int8()) if types.is_boolean(array.type) else array
