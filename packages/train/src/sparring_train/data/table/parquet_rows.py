"""Reads row groups of Parquet files in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc
from pyarrow import parquet, types

from sparring.errors import DataError
from sparring_train.data.table.decode import RawRows
from sparring_train.data.table.files import TableFile
from sparring_train.data.table.row_groups import ColumnTypes, RowGroup, without_views

__all__ = ["ParquetRows", "check_indices", "translate_parquet_errors"]

Rows = npt.NDArray[np.int64]

_NO_ROWS = np.empty(0, np.int64)
_BUFFER_BYTES = 1 << 18
"""Number of bytes that are read from a local file at a time, per column."""
_MAX_GROUP_ROWS = 1 << 28
"""Maximum number of rows of a row group. The footer of a damaged file may contain any number."""


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
        self.types = ColumnTypes()
        self._columns: list[dict[str, str | Any]] = []
        position = 0
        for number, file in enumerate(files):
            with translate_parquet_errors(file), _opened(file) as opened:
                position = self._add_file(number, file, opened, columns, position)
        self.num_rows = position
        if not position:
            raise DataError(
                f"found no row in {len(files)} files, the first is {files[0].name}; choose other files"
            )

    def _add_file(
        self, number: int, file: TableFile, opened: Any, columns: Sequence[str], position: int
    ) -> int:
        """Adds the row groups of a file, whose first row has this position; returns the next position."""
        footer, schema = opened.metadata, opened.schema_arrow
        found = self._find_columns(file, schema, columns)
        self._columns.append(found)
        self._footers.append(footer)
        stored = [each for each in found.values() if isinstance(each, str)]
        self._dictionaries.append(_dictionary_columns(file, opened, stored))
        begin, first = 0, position
        for group in range(footer.num_row_groups):
            num_rows = footer.row_group(group).num_rows
            if not 0 <= num_rows <= _MAX_GROUP_ROWS:
                raise DataError(
                    f"{file.name}: row group {group} contains {num_rows:,} rows according to the footer, "
                    f"expected 0 to {_MAX_GROUP_ROWS:,}; write the file again, with smaller row groups",
                    path=file.name,
                )
            end = begin + num_rows
            count = num_rows - len(_between(file.deleted, begin, end))
            if count:
                self.groups.append(
                    RowGroup(number, group, begin + 1, position, count, position - first)
                )
            begin = end
            position += count
        return position

    @property
    def file_rows(self) -> list[int]:
        """Number of rows of each file, in order."""
        return [footer.num_rows for footer in self._footers]

    def name_of(self, group: RowGroup) -> str:
        """Returns the name of the file of a row group."""
        return self._files[group.file].name

    def key_of(self, group: RowGroup) -> str:
        """Returns the path of the file of a row group below the folder of the data set."""
        return self._files[group.file].key

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
                    yield from self._blocks(opened, group, columns, block_rows)
        finally:
            if opened is not None:
                opened.close()

    def _blocks(
        self, opened: Any, group: RowGroup, columns: Sequence[str], block_rows: int
    ) -> Iterator[RawRows]:
        file, found = self._files[group.file], self._columns[group.file]
        stored = {found[name]: name for name in columns if isinstance(found[name], str)}
        constants = {name: found[name] for name in columns if not isinstance(found[name], str)}
        begin, position = group.first_row - 1, group.position

        def convert(read: Any) -> RawRows:
            nonlocal begin, position
            end = begin + read.num_rows
            block = _without(read, _between(file.deleted, begin, end) - begin)
            arrays = {
                stored[name]: check_indices(without_views(array), file.name)
                for name, array in zip(block.schema.names, block.columns, strict=True)
            }
            for name, value in constants.items():
                arrays[name] = _repeated(value, block.num_rows)
            index = group.index + position - group.position
            rows = RawRows(
                file.name, begin + 1, position, block.num_rows, arrays, key=file.key, index=index
            )
            begin, position = end, position + block.num_rows
            return rows

        read = opened.iter_batches(
            batch_size=block_rows, row_groups=[group.group], columns=list(stored)
        )
        # Without blocks whose rows are all deleted. Does not hold a block after it was yielded.
        yield from filter(len, map(convert, read))

    def _open(self, number: int, columns: Sequence[str]) -> Any:
        stored = [self._columns[number][name] for name in columns]
        known = [name for name in self._dictionaries[number] if name in stored]
        return _opened(self._files[number], metadata=self._footers[number], read_dictionary=known)

    def _find_columns(
        self, file: TableFile, schema: Any, columns: Sequence[str]
    ) -> dict[str, str | Any]:
        """Returns, for each column, its name in the file, or the value that it has in all rows."""
        found: dict[str, str | Any] = {}
        for name in columns:
            stored = name if file.part is None else file.part.find_stored_name(name, schema)
            at = [] if stored is None else schema.get_all_field_indices(stored)
            if stored is not None and len(at) == 1:
                found[name] = stored
            elif not at and file.part is not None and name in file.part.schema.names:
                found[name] = file.part.find_constant(name)
            else:
                names = schema.names if file.part is None else file.part.schema.names
                shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
                problem = "occurs more than once" if at else f"is missing, found {shown}"
                raise DataError(
                    f"{file.name}: column {name!r} {problem}; fix the columns of the configuration or "
                    "of the file",
                    path=file.name,
                    column=name,
                )
        self.types.add(
            file.name,
            {
                name: schema.field(each).type if isinstance(each, str) else each.type
                for name, each in found.items()
            },
        )
        return found


def _between(deleted: Rows | None, begin: int, end: int) -> Rows:
    """Returns the deleted rows from `begin` to `end`."""
    if deleted is None:
        return _NO_ROWS
    return deleted[slice(*np.searchsorted(deleted, (begin, end)))]


def _without(block: Any, deleted: Rows) -> Any:
    """Returns the rows of a block, except the deleted ones."""
    if not len(deleted):
        return block
    is_kept = np.ones(block.num_rows, np.bool_)
    is_kept[deleted] = False
    return block.filter(pyarrow.array(is_kept))


def _repeated(value: Any, count: int) -> Any:
    """Returns an Arrow array of equal values. Strings are hashed only once, as a dictionary."""
    if not types.is_string(value.type) or not value.is_valid:
        return pyarrow.repeat(value, count)
    indices = pyarrow.array(np.zeros(count, np.int32))
    return pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array([value], value.type))


def _dictionary_columns(file: TableFile, opened: Any, columns: Sequence[str]) -> list[str]:
    """Returns the string columns that are dictionary-encoded, according to the first row group."""
    footer, schema = opened.metadata, opened.schema_arrow
    if not footer.num_row_groups:
        return []
    paths = ((at, footer.schema.column(at).path) for at in range(footer.num_columns))
    texts = {
        at: name for at, name in paths if name in columns and _is_text(schema.field(name).type)
    }
    if texts and file.is_local:
        # Arrow raises an error for damaged metadata of a column if it reads a row, but otherwise ends
        # the process. Remote files are not checked, because Arrow would read their whole row group.
        rows = opened.iter_batches(batch_size=1, row_groups=[0], columns=list(texts.values()))
        next(rows, None)
    group = footer.row_group(0)
    # A writer switches to plain pages when a dictionary becomes too large.
    return [
        name
        for at, name in texts.items()
        if group.column(at).has_dictionary_page and _is_all_indices(group.column(at))
    ]


def _is_text(kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_string_view(kind))


def _is_all_indices(column: Any) -> bool:
    return list(column.encodings).count("PLAIN") < 2 and column.encodings[-1] != "PLAIN"


def _opened(file: TableFile, **options: Any) -> Any:
    if file.is_local:
        # With pre_buffer, Arrow holds the compressed columns of the whole row group for each lane.
        return parquet.ParquetFile(
            file.path, buffer_size=_BUFFER_BYTES, pre_buffer=False, **options
        )
    return parquet.ParquetFile(file.open(), pre_buffer=True, **options)


def check_indices(array: Any, file: str) -> Any:
    """Returns an array; Arrow does not compare the indices of a file with the length of their dictionary.

    Raises:
        DataError: an index has no entry in the dictionary.
    """
    values = array
    while types.is_list(values.type) or types.is_large_list(values.type):
        values = values.values
    if types.is_dictionary(values.type):
        found = pc.min_max(values.indices)
        low, high, size = found["min"].as_py(), found["max"].as_py(), len(values.dictionary)
        if high is not None and not 0 <= low <= high < size:
            raise DataError(
                f"reading {file} as Parquet failed: found the indices {low} to {high} for a dictionary "
                f"of {size} entries; the file is damaged, write it again",
                path=file,
            )
    return array


@contextmanager
def translate_parquet_errors(file: TableFile) -> Iterator[None]:
    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"reading {file.name} as Parquet failed: {error}; check that the file is complete",
            path=file.name,
        ) from error
