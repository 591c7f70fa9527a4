"""Reads row groups of Parquet files in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow
from pyarrow import parquet, types

from sparring.errors import DataError
from sparring_train.columns import Origin
from sparring_train.data.table.decode import RawRows
from sparring_train.data.table.files import TableFile

__all__ = ["ParquetRows", "RowGroup", "find_type_family", "translate_parquet_errors"]

_EMPTY = ("nulls", "lists of nulls")
"""Types of a column that contains no values in a file. Another file then determines the type."""
_BUFFER_BYTES = 1 << 18
"""Number of bytes that are read from a local file at a time, per column."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group, which can be read independently of others."""

    file: int
    """Index of the file."""
    group: int
    """Index of the group in the file."""
    first_row: int
    """Number of its first row in the file, from 1."""
    position: int
    """Position of its first row in all files."""
    num_rows: int


class ParquetRows:
    """The Parquet files of one data set. The constructor reads and keeps the footers of all files.

    Args:
        files: files of the data set, in order.
        columns: required columns. Each must have the same type in all files.

    Raises:
        DataError: a file cannot be read, a column is missing, or its type differs between files.
    """

    def __init__(self, files: Sequence[TableFile], columns: Sequence[str]) -> None:
        self._files = files
        self._footers: list[Any] = []
        self._dictionaries: list[list[str]] = []
        self.groups: list[RowGroup] = []
        self.types: dict[str, Any] = {}
        position = 0
        for number, file in enumerate(files):
            with translate_parquet_errors(file), _opened(file) as opened:
                footer, schema = opened.metadata, opened.schema_arrow
            self._check(file, schema, columns)
            self._footers.append(footer)
            self._dictionaries.append(_dictionary_columns(footer, schema, columns))
            first_row = 1
            for group in range(footer.num_row_groups):
                count = footer.row_group(group).num_rows
                if count:
                    self.groups.append(RowGroup(number, group, first_row, position, count))
                first_row += count
                position += count
        self.num_rows = position
        if not position:
            raise DataError(
                f"found no row in {len(files)} files, the first is {files[0].name}; choose other files"
            )

    @property
    def file_rows(self) -> list[int]:
        """Number of rows of each file, in order."""
        return [footer.num_rows for footer in self._footers]

    def name_of(self, group: RowGroup) -> str:
        """Returns the name of the file of a row group."""
        return self._files[group.file].name

    def origins(self, columns: Sequence[str]) -> dict[str, Origin]:
        """Returns, for each column of ids that has values, whether its ids come from strings."""
        texts = {"strings", "lists of strings"}
        return {
            name: "string" if self.types[name] in texts else "integer"
            for name in columns
            if self.types[name] not in _EMPTY
        }

    def check_origins(self, expected: Mapping[str, str]) -> None:
        """Checks that each column contains the kind of values that `expected` specifies.

        Strings and whole numbers result in different ids, and so in different rows of the tables.

        Raises:
            DataError: a column contains whole numbers instead of strings, or strings instead of whole
                numbers.
        """
        for name, found in self.origins(tuple(expected)).items():
            is_text = expected[name] in ("string", "hexadecimal")
            wanted = "strings" if is_text else "whole numbers"
            if wanted != ("strings" if found == "string" else "whole numbers"):
                raise DataError(
                    f"{self._files[0].name}, column {name!r}: found {self.types[name]}, expected "
                    f"{wanted}, as in data.types or in the data of the run; convert the column",
                    path=self._files[0].name,
                    column=name,
                    found=self.types[name],
                    expected=wanted,
                )

    def read(
        self, groups: Iterable[RowGroup], columns: Sequence[str], block_rows: int
    ) -> Iterator[RawRows]:
        """Yields the rows of row groups, in order, at most `block_rows` at a time.

        Raises:
            DataError: a file cannot be read.
        """
        opened: Any = None
        number = -1
        try:
            for group in groups:
                file = self._files[group.file]
                with translate_parquet_errors(file):
                    if group.file != number:
                        if opened is not None:
                            opened.close()
                        opened = self._open(group.file, columns)
                        number = group.file
                    done = 0
                    for block in opened.iter_batches(
                        batch_size=block_rows, row_groups=[group.group], columns=list(columns)
                    ):
                        yield RawRows(
                            file.name,
                            group.first_row + done,
                            group.position + done,
                            block.num_rows,
                            dict(zip(block.schema.names, block.columns, strict=True)),
                        )
                        done += block.num_rows
        finally:
            if opened is not None:
                opened.close()

    def _open(self, number: int, columns: Sequence[str]) -> Any:
        known = [name for name in self._dictionaries[number] if name in columns]
        return _opened(self._files[number], metadata=self._footers[number], read_dictionary=known)

    def _check(self, file: TableFile, schema: Any, columns: Sequence[str]) -> None:
        for name in columns:
            at = schema.get_all_field_indices(name)
            if len(at) != 1:
                shown = ", ".join(schema.names[:12]) + (", …" if len(schema.names) > 12 else "")
                found = "occurs more than once" if at else f"is missing, found {shown}"
                raise DataError(
                    f"{file.name}: column {name!r} {found}; fix the columns of the configuration or "
                    "of the file",
                    path=file.name,
                    column=name,
                )
            kind = find_type_family(schema.field(at[0]).type)
            if self.types.get(name) in _EMPTY:
                self.types[name] = kind
            if self.types.setdefault(name, kind) != kind and kind not in _EMPTY:
                raise DataError(
                    f"{file.name}, column {name!r}: found {kind}, but {self.types[name]} in "
                    f"{self._files[0].name}; write all files with one type, because strings and whole "
                    "numbers result in different ids",
                    path=file.name,
                    column=name,
                    found=kind,
                    expected=self.types[name],
                )


def find_type_family(kind: Any) -> str:
    """Returns the common name of all types that are read in the same way."""
    if types.is_dictionary(kind):
        return find_type_family(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind):
        return f"lists of {find_type_family(kind.value_type)}"
    for test, name in (
        (types.is_integer, "whole numbers"),
        (types.is_floating, "numbers"),
        (types.is_decimal, "numbers"),
        (types.is_boolean, "booleans"),
        (types.is_temporal, "times"),
    ):
        if test(kind):
            return name
    if types.is_null(kind):
        return "nulls"
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return "strings" if any(test(kind) for test in texts) else str(kind)


def _dictionary_columns(footer: Any, schema: Any, columns: Sequence[str]) -> list[str]:
    """Returns the string columns that are dictionary-encoded, according to the first row group."""
    if not footer.num_row_groups:
        return []
    group = footer.row_group(0)
    found = []
    for at in range(group.num_columns):
        column = group.column(at)
        name = column.path_in_schema
        if name not in columns or not column.has_dictionary_page:
            continue
        kind = schema.field(name).type
        # A writer switches to plain pages when a dictionary becomes too large.
        if types.is_string(kind) and _is_all_indices(column):
            found.append(name)
    return found


def _is_all_indices(column: Any) -> bool:
    return list(column.encodings).count("PLAIN") < 2 and column.encodings[-1] != "PLAIN"


def _opened(file: TableFile, **options: Any) -> Any:
    if file.is_local:
        return parquet.ParquetFile(file.path, buffer_size=_BUFFER_BYTES, **options)
    return parquet.ParquetFile(file.open(), pre_buffer=True, **options)


@contextmanager
def translate_parquet_errors(file: TableFile) -> Iterator[None]:
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"reading {file.name} as Parquet failed: {error}; check that the file is complete",
            path=file.name,
        ) from error
