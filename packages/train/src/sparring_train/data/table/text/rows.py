"""Reads CSV files in blocks of rows."""

from __future__ import annotations

import csv as python_csv
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow
import pyarrow.compute as pc
from pyarrow import csv

from sparring.errors import DataError
from sparring_train.columns import Origin
from sparring_train.config.sections.table import TableData
from sparring_train.data.table.decode import BadValue, RawRows, make_bad_row_error
from sparring_train.data.table.files import TableFile
from sparring_train.data.table.text.encoding import (
    HEADER_BYTES,
    clean_names,
    find_parser_delimiter,
    get_delimiter,
    open_text,
    parse_rows,
    read_header,
)
from sparring_train.data.table.text.forms import (
    POSITION,
    find_keys,
    get_form,
    read_json,
    read_lines,
    read_names_of_lines,
)
from sparring_train.data.table.text.lists import split_lists
from sparring_train.data.table.text.parser import CsvParser
from sparring_train.data.table.text.values import (
    NO_NUMBER,
    TEXTS,
    Kind,
    TextStyle,
    are_integers,
    convert_texts,
    is_number,
)

__all__ = ["BrokenRows", "CsvRows"]

_BLOCK_BYTES = 8 << 20
_SAMPLE_ROWS = 1000
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
    _names: dict[str, list[str]] = field(default_factory=dict)
    _renamed: dict[str, list[str]] = field(default_factory=dict)
    """File → names of its columns, if they differ from its header."""
    _kinds: dict[str, Kind] = field(default_factory=dict)
    _strictly_read: set[str] = field(default_factory=set)
    _style: TextStyle = field(init=False)

    def __post_init__(self) -> None:
        self._style = TextStyle.of(self.data)
        keys: set[str] = set()
        for file in self.files:
            names = self._names[file.name] = self._read_names(file)
            if get_form(file, self.data) == "json":
                # An object without a key has no value.
                keys.update(names)
                if file is not self.files[-1]:
                    continue
                names = [*keys]
            for name in self.columns:
                if names.count(name) != 1:
                    found = "occurs more than once" if name in names else "is missing"
                    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
                    given = self.data.column_names is not None
                    where = "data.column_names" if given else f"row {1 + self.data.skip_lines}"
                    raise DataError(
                        f"{file.name}, {where}: column {name!r} {found}, found {shown}; fix the names of "
                        "columns in the configuration or the file",
                        path=file.name,
                        row=1,
                        column=name,
                    )
        blocks = self.blocks(self.files[0], list(self.columns), HEADER_BYTES, BrokenRows())
        sample = next(blocks, None)
        for name in self.columns:
            values = [] if sample is None else sample.column(name).slice(0, _SAMPLE_ROWS)
            self._kinds[name] = self._kind(name, [str(each) for each in values if each.is_valid])

    def names(self, file: TableFile) -> list[str]:
        """Returns the names of the columns of a file."""
        return self._names[file.name]

    def _read_names(self, file: TableFile) -> list[str]:
        form = get_form(file, self.data)
        if form == "json":
            return find_keys(file, self.data, self.columns, _SAMPLE_ROWS)
        if form == "lines":
            return read_names_of_lines(file, self.data)
        if self.data.column_names is not None:
            return list(self.data.column_names)
        names = read_header(file, self.data)
        cleaned = clean_names(names, self.data, self.columns)
        if cleaned != names:
            self._renamed[file.name] = cleaned
        return cleaned

    def _num_headers(self, file: TableFile) -> int:
        """Returns the number of rows of a file before the first one of values."""
        is_header = self.data.column_names is None and get_form(file, self.data) != "json"
        return self.data.skip_lines + is_header

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
            row, first = 1 + self._num_headers(file), position
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
        form = get_form(file, self.data)
        if form == "json":
            yield from read_json(file, self.data, columns, block_bytes, broken)
            return
        if form == "lines":
            whole = self._names[file.name]
            yield from read_lines(file, self.data, whole, columns, block_bytes, broken)
            return
        num_before = broken.count

        def on_broken(row: Any) -> str:
            broken.first = broken.first or row
            broken.count += 1
            return "skip" if self.data.bad_rows == "skip" else "error"

        names = self._renamed.get(file.name) or self.data.column_names
        num_rows = 1 if names is None else 0
        has_quotes = len(get_delimiter(file, self.data)) == 1
        try:
            with open_text(file, self.data) as stream:
                if file.name in self._renamed:
                    stream.readline()
                parser = CsvParser(
                    stream,
                    on_broken,
                    csv.ReadOptions(block_size=block_bytes, column_names=names),
                    {
                        "delimiter": find_parser_delimiter(file, self.data),
                        "quote_char": '"' if has_quotes else False,
                        "newlines_in_values": has_quotes,
                    },
                    csv.ConvertOptions(
                        include_columns=columns,
                        column_types={name: pyarrow.string() for name in columns},
                        null_values=["", *self.data.missing_values],
                        strings_can_be_null=True,
                    ),
                )
                with closing(parser):
                    for block in parser:
                        num_rows += block.num_rows
                        yield self._trimmed(block) if self.data.trim else block
                    num_lines = parser.num_lines
                if has_quotes and num_lines != num_rows + broken.count - num_before:
                    self._check_quotes(file)
        except DataError:
            if has_quotes:
                self._check_quotes(file)
            if broken.first is None or self.data.bad_rows == "skip":
                raise
            raise self.broken_row(file, broken.first) from None

    def _trimmed(self, block: Any) -> Any:
        """Removes spaces around values."""
        missing = pyarrow.array(["", *self.data.missing_values])
        if not self.columns:
            return block
        values = map(pc.utf8_trim_whitespace, block.columns)
        arrays = [pc.if_else(pc.is_in(each, missing), None, each) for each in values]
        return pyarrow.RecordBatch.from_arrays(arrays, names=block.schema.names)

    def broken_row(self, file: TableFile, row: Any) -> DataError:
        """Returns the error for a row with a wrong number of fields, the first one of a file."""
        if isinstance(row, DataError):
            return row
        source = "in the header" if self.data.column_names is None else "in data.column_names"
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
            with open_text(file, self.data) as stream:
                rows = self._python_rows(stream, file, strict=True)
                for row, _ in enumerate(rows, 1 + self.data.skip_lines):  # noqa: B007
                    pass
        except python_csv.Error as error:
            raise DataError(
                f"{file.name}, row {row + 1}: found a quote that is not closed or is misplaced "
                f"({error}); expected quotes around a whole value; fix the row",
                path=file.name,
                row=row + 1,
            ) from None
        self._strictly_read.add(file.name)

    def _row_of(self, file: TableFile, num_fields: int) -> int:
        """Returns the first row with a wrong number of fields; the parser does not report its number."""
        with open_text(file, self.data) as stream:
            rows = enumerate(self._python_rows(stream, file), 1 + self.data.skip_lines)
            return next((number for number, row in rows if len(row) != num_fields), 0)

    def _python_rows(
        self, stream: Any, file: TableFile, *, strict: bool = False
    ) -> Iterator[list[str]]:
        """Yields the rows of a file that contains errors, except empty rows."""
        # Python's limit of 128 KB is global to the process, so it is raised only while reading.
        limit = python_csv.field_size_limit(_MAX_FIELD_BYTES)
        try:
            yield from parse_rows(stream, file, self.data, strict=strict)
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
            separator = self.data.find_separator(name)
            if name in self.data.lists and separator is not None:
                lists = split_lists(
                    pyarrow.array(sample, pyarrow.string()), separator, self._trims_lists
                )
                sample = [each for each in lists.flatten().to_pylist() if each is not None]
            missing = {*NO_NUMBER.to_pylist(), *self.data.missing_values}
            sample = [each for each in sample if each not in missing]
            return "integer" if are_integers(sample) else "string"
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
        kind, style = self._kinds[name], self._style
        if self.data.form == "lines" and name == POSITION and kind == "number":
            return array.cast(pyarrow.int64())
        separator = self.data.find_separator(name)
        if name not in self.data.lists or separator is None:
            return convert_texts(array, kind, name, style, bad)
        lists = split_lists(array, separator, self._trims_lists)
        missing = pyarrow.array(["", *self.data.missing_values])
        if kind in TEXTS and len(missing) == 1:
            return lists  # Decoder treats the empty string as missing.
        rows = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
        parts = lists.flatten()
        parts = pc.if_else(pc.is_in(parts, missing), None, parts)
        values = convert_texts(parts, kind, name, style, bad, rows)
        offsets = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).cumsum()
        ends = pyarrow.array([0, *offsets.tolist()], pyarrow.int32())
        return pyarrow.ListArray.from_arrays(ends, values)

    @property
    def _trims_lists(self) -> bool:
        return isinstance(self.data.separator, dict) or self.data.trim
