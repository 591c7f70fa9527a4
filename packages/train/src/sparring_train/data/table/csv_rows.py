"""CSV files, read a block of rows at a time."""

from __future__ import annotations

import csv as python_csv
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow
import pyarrow.compute as pc
from pyarrow import csv

from sparring.errors import DataError
from sparring_train.config.table import TableData
from sparring_train.data.columns import Origin
from sparring_train.data.table.decode import BadValue, RawRows, bad_row
from sparring_train.data.table.files import TableFile

__all__ = ["CsvRows", "header_of"]

Kind = Literal["integer", "unsigned", "string", "number", "time"]

_BLOCK_BYTES = 8 << 20
_SAMPLE_ROWS = 1000
_HEADER_BYTES = 1 << 20
_INTEGER = re.compile(r"([+-]?[0-9]{1,20})(\.0+)?")
"""Also as pandas writes a column of ids that has nulls: `7.0`."""
_NO_VALUE = pyarrow.array(csv.ConvertOptions().null_values)
"""Texts that stand for no number: `NA`, `NULL`, `nan` and others that CSV readers know."""
_NAMES: dict[str, float] = {"true": 1.0, "false": 0.0}
_EXPECTED: dict[Kind, str] = {
    "integer": "a whole number, as the first rows or the data of the run have (or name the column in "
    "data.types: string)",
    "number": "a number",
    "time": "a time such as 2024-01-31 12:00:00, as the first row has",
    "string": "text",
    "unsigned": "a whole number from 0 to 2^64 - 1, as data.types says",
}


@dataclass(slots=True)
class CsvRows:
    """Files of one data set, each with a header. All are read from their beginning.

    A quoted value may have line breaks. A quote that is not closed would make one value of all rows
    after it: a file whose lines are more than its rows is therefore parsed again, strictly.

    Raises:
        DataError: a file cannot be read, or lacks a column.
    """

    files: Sequence[TableFile]
    data: TableData
    columns: Sequence[str]
    """That they must have."""
    num_broken: int = 0
    """Rows left out for another number of fields, in the last reading."""
    _kinds: dict[str, Kind] = field(default_factory=dict)
    _strictly_read: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for file in self.files:
            names = header_of(file)
            for name in self.columns:
                if names.count(name) != 1:
                    found = "is there more than once" if name in names else "is missing"
                    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
                    raise DataError(
                        f"{file.name}, row 1: column {name!r} {found}; found {shown}",
                        path=file.name,
                        row=1,
                        column=name,
                    )
        sample = next(self._blocks(self.files[0], list(self.columns), _HEADER_BYTES), None)
        for name in self.columns:
            values = [] if sample is None else sample.column(name).slice(0, _SAMPLE_ROWS)
            self._kinds[name] = self._kind(name, [str(each) for each in values if each.is_valid])

    @property
    def origins(self) -> dict[str, Origin]:
        """Column of ids → values that they are made of."""
        kinds = {name: self._kinds[name] for name in self.data.categorical if name in self._kinds}
        return {name: "string" if kind == "string" else "integer" for name, kind in kinds.items()}

    def read(self, columns: Sequence[str]) -> Iterator[RawRows]:
        """All rows of all files, in order.

        Raises:
            DataError: a file cannot be read; a row has another number of fields than the header,
                and bad rows are refused.
        """
        position, self.num_broken = 0, 0
        for file in self.files:
            row = 2
            for block in self._blocks(file, list(columns), _BLOCK_BYTES):
                bad: list[BadValue] = []
                arrays = {name: self._typed(block.column(name), name, bad) for name in columns}
                yield RawRows(file.name, row, position, block.num_rows, arrays, bad)
                row += block.num_rows
                position += block.num_rows

    def _blocks(self, file: TableFile, columns: list[str], block_bytes: int) -> Iterator[Any]:
        broken: list[Any] = []

        def on_broken(row: Any) -> str:
            broken.append(row)
            self.num_broken += 1
            return "skip" if self.data.bad_rows == "skip" else "error"

        num_rows = 1  # the header
        try:
            with _reading(file), file.open() as stream:
                counted = _CountedLines(stream)
                reader = csv.open_csv(
                    counted,
                    csv.ReadOptions(block_size=block_bytes),
                    csv.ParseOptions(
                        delimiter=_delimiter(file),
                        newlines_in_values=True,
                        invalid_row_handler=on_broken,
                    ),
                    csv.ConvertOptions(
                        include_columns=columns,
                        column_types={name: pyarrow.string() for name in columns},
                        null_values=[""],
                        strings_can_be_null=True,
                    ),
                )
                for block in reader:
                    num_rows += block.num_rows
                    yield block
                if counted.num_lines != num_rows + len(broken):
                    self._check_quotes(file)
        except DataError:
            self._check_quotes(file)
            if not broken or self.data.bad_rows == "skip":
                raise
            row = broken[0]
            fields = f"{row.expected_columns} fields, as the header has"
            found = f"{row.actual_columns} fields in {str(row.text)[:60]!r}"
            line = _row_of(file, row.expected_columns)
            raise bad_row(file.name, line, BadValue(0, None, found, fields)) from None

    def _check_quotes(self, file: TableFile) -> None:
        """Raises DataError where a quote is not closed, or text follows a closing quote."""
        if file.name in self._strictly_read:
            return
        row = 0
        try:
            with _reading(file), file.open() as stream:
                for row, _ in enumerate(_python_rows(file, stream, strict=True), 1):  # noqa: B007
                    pass
        except python_csv.Error as error:
            raise DataError(
                f"{file.name}, row {row + 1}: found a quote that is not closed, or not in its place "
                f"({error}); expected a quoted value to end with a quote; mend the row",
                path=file.name,
                row=row + 1,
            ) from None
        self._strictly_read.add(file.name)

    def _kind(self, name: str, sample: list[str]) -> Kind:
        if name in self.data.types:
            return self.data.types[name]
        users = None if self.data.history is None else self.data.history.by
        if name in (*self.data.categorical, self.data.split.leave_one_out, users):
            if name in self.data.lists and self.data.separator is not None:
                sample = [part for each in sample for part in each.split(self.data.separator)]
            missing = set(_NO_VALUE.to_pylist())
            sample = [each for each in sample if each not in missing]
            is_integer = bool(sample) and all(map(_is_integer, sample))
            return "integer" if is_integer else "string"
        if name == self.data.time and not all(map(_is_number, sample[:1])):
            return "time"
        is_example = name in (*self.data.numeric, self.data.label, self.data.weight)
        if name == self.data.split.column and not is_example:
            return "string"
        return "number"

    def _typed(self, array: Any, name: str, bad: list[BadValue]) -> Any:
        kind = self._kinds[name]
        if name not in self.data.lists:
            return _converted(array, kind, name, bad, None)
        assert self.data.separator is not None
        lists = pc.split_pattern(array, self.data.separator)
        if kind == "string":
            return lists
        rows = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
        parts = lists.flatten()
        parts = pc.if_else(pc.equal(pc.binary_length(parts), 0), None, parts)
        values = _converted(parts, kind, name, bad, rows)
        offsets = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).cumsum()
        ends = pyarrow.array([0, *offsets.tolist()], pyarrow.int32())
        return pyarrow.ListArray.from_arrays(ends, values)


def _converted(array: Any, kind: Kind, name: str, bad: list[BadValue], rows: Any) -> Any:
    """Text as values of a kind; those that are not of it are null, and bad unless they stand for
    no value."""
    if kind == "string":
        return array
    target = {
        "integer": pyarrow.int64(),
        "unsigned": pyarrow.uint64(),
        "number": pyarrow.float64(),
        "time": pyarrow.timestamp("us"),
    }[kind]
    try:
        return array.cast(target)
    except pyarrow.ArrowInvalid:
        array = pc.if_else(pc.is_in(array, _NO_VALUE), None, array)
        if kind in ("integer", "unsigned"):
            array = pc.replace_substring_regex(array, r"^([+-]?[0-9]+)\.0+$", r"\1")
    try:
        return array.cast(target)
    except pyarrow.ArrowInvalid:
        values = []
        for at, each in enumerate(array):
            value = None
            try:
                value = pc.cast(each, target).as_py() if each.is_valid else None
            except pyarrow.ArrowInvalid:
                text = str(each)
                if kind == "number" and text.lower() in _NAMES:
                    value = _NAMES[text.lower()]
                else:
                    row = at if rows is None else int(rows[at])
                    bad.append(BadValue(row, name, repr(text[:60]), _EXPECTED[kind]))
            values.append(value)
        return pyarrow.array(values, target)


def _is_integer(text: str) -> bool:
    found = _INTEGER.fullmatch(text)
    return found is not None and -(2**63) <= int(found[1]) < 2**63


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _row_of(file: TableFile, num_fields: int) -> int:
    """The first row of another number of fields; the parser tells no row of a stream."""
    with file.open() as stream:
        rows = enumerate(_python_rows(file, stream), 1)
        return next((number for number, row in rows if len(row) != num_fields), 0)


def _python_rows(file: TableFile, stream: Any, *, strict: bool = False) -> Iterator[list[str]]:
    """Rows that are not empty, of a file that something is wrong with."""
    lines = io.TextIOWrapper(stream, "utf-8", "replace", newline="")
    return filter(None, python_csv.reader(lines, delimiter=_delimiter(file), strict=strict))


def _delimiter(file: TableFile) -> str:
    return "\t" if file.has_tabs else ","


class _CountedLines:
    """A stream whose lines are counted as it is read."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._ended, self._last = 0, b"\n"

    def read(self, size: int = -1) -> bytes:
        block: bytes = self._stream.read(size)
        self._ended += block.count(b"\n")
        self._last = block[-1:] or self._last
        return block

    @property
    def num_lines(self) -> int:
        return self._ended + (self._last != b"\n")


def header_of(file: TableFile) -> list[str]:
    """Names of columns.

    Raises:
        DataError: the file cannot be read, or has no header, or its values are separated otherwise
            than its name says.
    """
    with _reading(file), file.open() as stream:
        text = stream.readline(_HEADER_BYTES).decode("utf-8-sig", "replace")
    names = next(python_csv.reader([text], delimiter=_delimiter(file)), [])
    if not names:
        raise DataError(
            f"{file.name}, row 1: found nothing, expected a header with the names of columns",
            path=file.name,
            row=1,
        )
    other = next((each for each in ("\t", ";", ",", "|") if each in names[0]), None)
    if len(names) == 1 and other is not None:
        raise DataError(
            f"{file.name}, row 1: found one column, {names[0][:60]!r}; a file whose name ends in .csv "
            "has commas between its values, one that ends in .tsv has tabs; rename it, or write it with "
            f"these instead of {other!r}, or as Parquet",
            path=file.name,
            row=1,
        )
    return names


@contextmanager
def _reading(file: TableFile) -> Iterator[None]:
    try:
        yield
    except (pyarrow.ArrowException, OSError, EOFError, zlib.error) as error:
        # Ids are hashes of UTF-8: other bytes would be ids that no one who asks by the string has.
        advice = "; write the file as UTF-8" if "UTF8" in str(error) else ""
        raise DataError(
            f"{file.name}: cannot be read as CSV: {error}{advice}", path=file.name
        ) from error
