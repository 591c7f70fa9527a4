"""Reads CSV files in blocks of rows."""

from __future__ import annotations

import csv as python_csv
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow
import pyarrow.compute as pc
from pyarrow import csv

from sparring.errors import DataError
from sparring_train.columns import Origin
from sparring_train.config.sections.table import TableData
from sparring_train.data.table.csv_values import (
    NO_NUMBER,
    TEXTS,
    Kind,
    are_integers,
    convert_texts,
    is_number,
)
from sparring_train.data.table.decode import BadValue, RawRows, make_bad_row_error
from sparring_train.data.table.files import TableFile

__all__ = ["BrokenRows", "CsvRows", "delimiter_by_name", "read_header", "translate_csv_errors"]

_BLOCK_BYTES = 8 << 20
_SAMPLE_ROWS = 1000
_HEADER_BYTES = 1 << 20
_MAX_FIELD_BYTES = 1 << 30


@dataclass(slots=True)
class BrokenRows:
    """Rows of one reading that have a wrong number of fields."""

    count: int = 0
    first: Any = None


@dataclass(slots=True)
class CsvRows:
    """Files of one data set, each with a header. All are read from their beginning.

    A quoted value may contain line breaks. An unclosed quote would make the parser read all further rows
    as one value. Therefore a file with more lines than rows is parsed a second time, strictly.

    Raises:
        DataError: a file cannot be read, or a column is missing.
    """

    files: Sequence[TableFile]
    data: TableData
    columns: Sequence[str]
    """Columns that the files must contain."""
    num_broken: int = 0
    """Number of rows with a wrong number of fields that the last complete reading left out."""
    _kinds: dict[str, Kind] = field(default_factory=dict)
    _strictly_read: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for file in self.files:
            given = self.data.column_names
            names = read_header(file, self.data.delimiter) if given is None else list(given)
            for name in self.columns:
                if names.count(name) != 1:
                    found = "occurs more than once" if name in names else "is missing"
                    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
                    where = "row 1" if given is None else "data.column_names"
                    raise DataError(
                        f"{file.name}, {where}: column {name!r} {found}, found {shown}; fix the names of "
                        "columns in the configuration or the file",
                        path=file.name,
                        row=1,
                        column=name,
                    )
        blocks = self.blocks(self.files[0], list(self.columns), _HEADER_BYTES, BrokenRows())
        sample = next(blocks, None)
        for name in self.columns:
            values = [] if sample is None else sample.column(name).slice(0, _SAMPLE_ROWS)
            self._kinds[name] = self._kind(name, [str(each) for each in values if each.is_valid])

    @property
    def _num_headers(self) -> int:
        """Number of rows of each file that are a header."""
        return 1 if self.data.column_names is None else 0

    @property
    def origins(self) -> dict[str, Origin]:
        """Column of ids → source of its ids."""
        kinds = {name: self._kinds[name] for name in self.data.categorical if name in self._kinds}
        return {name: "string" if kind == "string" else "integer" for name, kind in kinds.items()}

    def read(self, columns: Sequence[str]) -> Iterator[RawRows]:
        """Yields all rows of all files, in order.

        Raises:
            DataError: a file cannot be read, or a row has a different number of fields than the header
                and bad rows are not skipped.
        """
        # An evaluation reads the files while a training is in the middle of them.
        position, broken = 0, BrokenRows()
        for file in self.files:
            row, first = 1 + self._num_headers, position
            for block in self.blocks(file, list(columns), _BLOCK_BYTES, broken):
                bad: list[BadValue] = []
                arrays = {name: self._typed(block.column(name), name, bad) for name in columns}
                yield RawRows(
                    file.name,
                    row,
                    position,
                    block.num_rows,
                    arrays,
                    bad,
                    key=file.key,
                    index=position - first,
                )
                row += block.num_rows
                position += block.num_rows
        self.num_broken = broken.count

    def blocks(
        self, file: TableFile, columns: list[str], block_bytes: int, broken: BrokenRows
    ) -> Iterator[Any]:
        """Yields rows of one file as Arrow batches of strings, and adds its broken rows to `broken`.

        Raises:
            DataError: the file cannot be read, or contains a bad row and bad rows are not skipped.
        """
        num_before = broken.count

        def on_broken(row: Any) -> str:
            broken.first = broken.first or row
            broken.count += 1
            return "skip" if self.data.bad_rows == "skip" else "error"

        num_rows = self._num_headers
        try:
            with translate_csv_errors(file), file.open() as stream:
                counted = _CountedLines(stream)
                reader = csv.open_csv(
                    counted,
                    csv.ReadOptions(block_size=block_bytes, column_names=self.data.column_names),
                    csv.ParseOptions(
                        delimiter=self._delimiter(file),
                        newlines_in_values=True,
                        invalid_row_handler=on_broken,
                    ),
                    csv.ConvertOptions(
                        include_columns=columns,
                        column_types={name: pyarrow.string() for name in columns},
                        null_values=["", *self.data.missing_values],
                        strings_can_be_null=True,
                    ),
                )
                for block in reader:
                    num_rows += block.num_rows
                    yield block
                if counted.num_lines != num_rows + broken.count - num_before:
                    self._check_quotes(file)
        except DataError:
            self._check_quotes(file)
            if broken.first is None or self.data.bad_rows == "skip":
                raise
            raise self.broken_row(file, broken.first) from None

    def broken_row(self, file: TableFile, row: Any) -> DataError:
        """Returns the error for a row with a wrong number of fields, the first one of a file."""
        source = "in the header" if self._num_headers else "in data.column_names"
        fields = f"{row.expected_columns} fields as {source}"
        found = f"{row.actual_columns} fields in {str(row.text)[:60]!r}"
        line = self._row_of(file, row.expected_columns)
        return make_bad_row_error(file.name, line, BadValue(0, None, found, fields))

    def _check_quotes(self, file: TableFile) -> None:
        """Raises `DataError` if a quote is not closed, or text follows a closing quote."""
        if file.name in self._strictly_read:
            return
        row = 0
        try:
            with translate_csv_errors(file), file.open() as stream:
                for row, _ in enumerate(self._python_rows(stream, file, strict=True), 1):  # noqa: B007
                    pass
        except python_csv.Error as error:
            raise DataError(
                f"{file.name}, row {row + 1}: found a quote that is not closed or is misplaced "
                f"({error}); expected quotes around a whole value; fix the row",
                path=file.name,
                row=row + 1,
            ) from None
        self._strictly_read.add(file.name)

    def _delimiter(self, file: TableFile) -> str:
        return self.data.delimiter or delimiter_by_name(file)

    def _row_of(self, file: TableFile, num_fields: int) -> int:
        """Returns the first row with a wrong number of fields; the parser does not report its number."""
        with file.open() as stream:
            rows = enumerate(self._python_rows(stream, file), 1)
            return next((number for number, row in rows if len(row) != num_fields), 0)

    def _python_rows(
        self, stream: Any, file: TableFile, *, strict: bool = False
    ) -> Iterator[list[str]]:
        """Yields the rows of a file that contains errors, except empty rows."""
        lines = io.TextIOWrapper(stream, "utf-8", "replace", newline="")
        # Python's limit of 128 KB is global to the process, so it is raised only while reading.
        limit = python_csv.field_size_limit(_MAX_FIELD_BYTES)
        try:
            rows = python_csv.reader(lines, delimiter=self._delimiter(file), strict=strict)
            yield from filter(None, rows)
        finally:
            python_csv.field_size_limit(limit)

    def _kind(self, name: str, sample: list[str]) -> Kind:
        if name in self.data.types:
            return self.data.types[name]
        users = None if self.data.history is None else self.data.history.by
        rules = [each for each in (self.data.split, self.data.validation) if each is not None]
        ids = [column for each in rules for column in each.id_columns]
        is_id = name in (*self.data.categorical, *(each.leave_one_out for each in rules), users)
        if name in [each.key for each in rules] and not is_id:
            return "string"  # of each file, whatever its first keys look like
        if name in (*self.data.categorical, *ids, users):
            if name in self.data.lists and self.data.separator is not None:
                sample = [part for each in sample for part in each.split(self.data.separator)]
            missing = {*NO_NUMBER.to_pylist(), *self.data.missing_values}
            sample = [each for each in sample if each not in missing]
            return "integer" if are_integers(sample, self.data.decimal) else "string"
        if name == self.data.time and not all(
            is_number(each, self.data.decimal) for each in sample[:1]
        ):
            return "time"
        if name == self.data.label and self.data.label_values:
            return "string"
        is_example = name in (*self.data.numeric, self.data.label, self.data.weight)
        if name in [each.column for each in rules] and not is_example:
            return "string"
        return "number"

    def _typed(self, array: Any, name: str, bad: list[BadValue]) -> Any:
        kind, decimal = self._kinds[name], self.data.decimal
        if name not in self.data.lists:
            return convert_texts(array, kind, name, decimal, bad)
        assert self.data.separator is not None
        lists = pc.split_pattern(array, self.data.separator)
        missing = pyarrow.array(["", *self.data.missing_values])
        if kind in TEXTS and len(missing) == 1:
            return lists  # Decoder treats the empty string as missing.
        rows = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
        parts = lists.flatten()
        parts = pc.if_else(pc.is_in(parts, missing), None, parts)
        values = convert_texts(parts, kind, name, decimal, bad, rows)
        offsets = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).cumsum()
        ends = pyarrow.array([0, *offsets.tolist()], pyarrow.int32())
        return pyarrow.ListArray.from_arrays(ends, values)


class _CountedLines:
    """A stream that counts the lines that are read."""

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


def delimiter_by_name(file: TableFile) -> str:
    """Returns the separator of values if `data.delimiter` is not set."""
    return "\t" if file.has_tabs else ","


def read_header(file: TableFile, delimiter: str | None = None) -> list[str]:
    """Returns the names of the columns.

    Raises:
        DataError: the file cannot be read, has no header, or has the wrong delimiter.
    """
    with translate_csv_errors(file), file.open() as stream:
        text = stream.readline(_HEADER_BYTES).decode("utf-8-sig", "replace")
    delimiter = delimiter or delimiter_by_name(file)
    try:
        names = next(python_csv.reader([text], delimiter=delimiter), [])
    except python_csv.Error as error:
        raise DataError(
            f"{file.name}, row 1: the header cannot be read ({error}); expected names of columns and a "
            "line break; fix the header",
            path=file.name,
            row=1,
        ) from None
    if not names:
        raise DataError(
            f"{file.name}, row 1: found nothing, expected a header with the names of columns; add it, or "
            "remove the file",
            path=file.name,
            row=1,
        )
    other = next((each for each in ("\t", ";", ",", "|") if each in names[0]), None)
    if len(names) == 1 and other is not None:
        raise DataError(
            f"{file.name}, row 1: found one column, {names[0][:60]!r}, expected {delimiter!r} between "
            f"values; set data.delimiter: {json.dumps(other)}",
            path=file.name,
            row=1,
        )
    return names


@contextmanager
def translate_csv_errors(file: TableFile) -> Iterator[None]:
    try:
        yield
    except (pyarrow.ArrowException, OSError, EOFError, zlib.error) as error:
        # Ids are hashes of UTF-8. Other encodings would give ids that no lookup of the string finds.
        advice = "write the file as UTF-8" if "UTF8" in str(error) else "check or replace the file"
        raise DataError(
            f"reading {file.name} as CSV failed: {error}; {advice}", path=file.name
        ) from error
