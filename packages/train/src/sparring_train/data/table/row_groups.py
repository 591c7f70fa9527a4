"""Row groups of a table, and the types of its columns, for all formats with row groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow
from pyarrow import types

from sparring.errors import DataError
from sparring_train.columns import Origin
from sparring_train.data.table.decode import RawRows

__all__ = [
    "EMPTY_TYPES",
    "ColumnTypes",
    "RowGroup",
    "TableRows",
    "find_type_family",
    "without_views",
]

EMPTY_TYPES = ("nulls", "lists of nulls")
"""Types of a column that contains no values in a file. Another file then determines the type."""


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
    """Position of its first row in the table."""
    num_rows: int
    """Number of its rows, without those that the table has deleted."""
    index: int
    """Index of its first row in the file, without deleted rows."""


class TableRows(Protocol):
    """The rows of a table, in row groups."""

    groups: list[RowGroup]
    types: ColumnTypes

    def name_of(self, group: RowGroup) -> str:
        """Returns the name of the file of a row group."""

    def key_of(self, group: RowGroup) -> str:
        """Returns `RawRows.key` of a row group."""

    def read(
        self, groups: Iterable[RowGroup], columns: Sequence[str], block_rows: int
    ) -> Iterator[RawRows]:
        """Yields the rows of row groups, in order, at most `block_rows` at a time.

        Raises:
            DataError: a file cannot be read.
        """


class ColumnTypes:
    """Families of the types of columns, which must be the same in all files."""

    def __init__(self) -> None:
        self._families: dict[str, str] = {}
        self._first_file = ""
        self.kinds: dict[str, list[Any]] = {}
        """Column → its different Arrow types, in the order of the files."""

    def add(self, file: str, kinds: Mapping[str, Any]) -> None:
        """Adds the Arrow types of the columns of a file.

        Raises:
            DataError: an earlier file has another type.
        """
        self._first_file = self._first_file or file
        families = self._families
        for name, kind in kinds.items():
            if kind not in self.kinds.setdefault(name, []):
                self.kinds[name].append(kind)
            family = find_type_family(kind)
            if families.get(name) in EMPTY_TYPES:
                families[name] = family
            if families.setdefault(name, family) != family and family not in EMPTY_TYPES:
                raise DataError(
                    f"{file}, column {name!r}: found {family}, but {families[name]} in "
                    f"{self._first_file}; write all files with one type, because strings and whole "
                    "numbers result in different ids",
                    path=file,
                    column=name,
                    found=family,
                    expected=families[name],
                )

    def origins(self, columns: Sequence[str]) -> dict[str, Origin]:
        """Returns, for each column of ids that has values, whether its ids come from strings."""
        texts = {"strings", "lists of strings"}
        return {
            name: "string" if self._families[name] in texts else "integer"
            for name in columns
            if self._families[name] not in EMPTY_TYPES
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
                    f"{self._first_file}, column {name!r}: found {self._families[name]}, expected "
                    f"{wanted}, as in data.types or in the data of the run; convert the column",
                    path=self._first_file,
                    column=name,
                    found=self._families[name],
                    expected=wanted,
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
    texts = (
        types.is_string, types.is_large_string, types.is_binary, types.is_large_binary,
        types.is_string_view, types.is_binary_view,
    )  # fmt: skip
    return "strings" if any(test(kind) for test in texts) else str(kind)


def without_views(array: Any) -> Any:
    """Converts strings in the view layout, which some writers store as the type, to ordinary strings."""
    is_list = types.is_list(array.type)
    kind = array.type.value_type if is_list else array.type
    if types.is_string_view(kind):
        plain = pyarrow.string()
    elif types.is_binary_view(kind):
        plain = pyarrow.binary()
    else:
        return array
    return array.cast(pyarrow.list_(plain) if is_list else plain)
