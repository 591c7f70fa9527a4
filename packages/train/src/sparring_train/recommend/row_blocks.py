"""Reads blocks of rows of Parquet files: ids, numbers, and the values of the columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow
from pyarrow import types

from sparring.errors import DataError, UnsupportedError
from sparring_train.columns import ColumnBatch
from sparring_train.config.run import RunConfig
from sparring_train.config.sections.columns import ColumnSettings
from sparring_train.data.table.decode import SKIP_ADVICE, Decoder, RawRows
from sparring_train.data.table.files import TableFile, find_files
from sparring_train.data.table.parquet_rows import ParquetRows
from sparring_train.data.table.row_groups import EMPTY_TYPES, find_type_family

__all__ = ["RowBlocks"]

_BATCH_ROWS = 1 << 14


class RowBlocks:
    """Rows of Parquet files by their position, decoded like the data of a run. Not thread-safe.

    Reading consecutive blocks reads each row group once.

    Args:
        config: configuration of the run, which determines how columns become ids and numbers.
        path: file, folder, pattern, or URL of these.
        columns: the features and numbers to read; other columns of the files are not read.
        others: further columns, whose values are returned.

    Raises:
        DataError: there is no file, a column is missing, or has another type than in the run.
        UnsupportedError: the data of the run have no columns, or the files are not Parquet.
    """

    def __init__(
        self,
        config: RunConfig,
        path: str,
        columns: Sequence[str],
        *,
        others: Sequence[str] = (),
    ) -> None:
        data = config.data
        if not isinstance(data, ColumnSettings):
            raise UnsupportedError(
                f"reading {path}: data.kind: {data.kind} does not define the columns of files; train "
                "with data.kind: table"
            )
        files = find_files(path)
        if files[0].format != "parquet":
            raise UnsupportedError(
                f"reading {path}: found {files[0].name}, expected Parquet files; convert them, for "
                "example with DuckDB or pyarrow.csv"
            )
        self._section = _select_columns(data, columns)
        known = (*self._section.categorical, *self._section.numeric)
        self._columns = tuple(dict.fromkeys((*known, *others)))
        self._rows = ParquetRows(files, self._columns)
        types_of = self._section.id_types
        self._rows.types.check_origins({name: types_of[name] for name in known if name in types_of})
        self._kinds = {
            name: _find_common_kind(path, name, self._rows.types.kinds[name])
            for name in self._columns
        }
        self._decoder = Decoder(self._section, None)
        self.files = [
            {"name": each.name.rpartition("/")[2], "rows": count, "bytes": size}
            for each, count, size in zip(
                files, self._rows.file_rows, _find_sizes(files, path), strict=True
            )
        ]
        """Name, number of rows and size of each file."""
        self._position = 0
        self._left: list[RawRows] = []
        self._batches: Iterator[RawRows] = iter(())

    def __len__(self) -> int:
        return self._rows.num_rows

    def read(self, begin: int, end: int) -> tuple[ColumnBatch, dict[str, Any]]:
        """Returns ids and numbers of the rows from `begin` to `end`, and the Arrow arrays of all columns.

        Raises:
            DataError: a file cannot be read, or a row is bad.
        """
        if begin != self._position or not begin:
            groups = [each for each in self._rows.groups if each.position + each.num_rows > begin]
            self._batches, self._left = self._rows.read(groups, self._columns, _BATCH_ROWS), []
        self._position = -1  # until all rows are read
        batches, arrays = [], []
        try:
            for rows in self._raw(begin, end):
                batches.append(replace(self._decoder.decode(rows)[0], given={}))
                arrays.append(rows.columns)
        except DataError as error:
            raise DataError(str(error).replace(SKIP_ADVICE, ""), **error.details) from error
        joined = {
            name: pyarrow.concat_arrays([_converted(each[name], kind) for each in arrays])
            for name, kind in self._kinds.items()
        }
        self._position = end
        return ColumnBatch.joined(batches), joined

    def _raw(self, begin: int, end: int) -> Iterator[RawRows]:
        while begin < end:
            rows = self._left.pop() if self._left else next(self._batches)
            last = rows.position + len(rows)
            if last > end:
                self._left.append(_cut(rows, end, last))
            if last > begin:
                yield _cut(rows, begin, min(end, last))
                begin = min(end, last)


def _find_sizes(files: Sequence[TableFile], path: str) -> list[int]:
    try:
        return [int(each.system.size(each.path)) for each in files]
    except OSError as error:
        raise DataError(
            f"finding the sizes of files of {path} failed: {error}; check access rights", path=path
        ) from error


def _find_common_kind(path: str, column: str, kinds: list[Any]) -> Any:
    """Returns the type of a column in all blocks: without dictionary, and wide enough for all files.

    Raises:
        DataError: there is none.
    """
    plain = [_plain_kind(kind) for kind in kinds]
    found = list(dict.fromkeys(kind for kind in plain if find_type_family(kind) not in EMPTY_TYPES))
    if len(found) <= 1:
        return (found or plain)[0]
    signed = [kind for kind in found if types.is_signed_integer(kind)]
    if all(map(types.is_integer, found)) and (not signed or pyarrow.uint64() not in found):
        return pyarrow.int64() if signed else pyarrow.uint64()
    if all(map(types.is_floating, found)):
        return pyarrow.float64()
    raise DataError(
        f"{path}, column {column!r}: found the types {', '.join(map(str, found))}; write all files with "
        "one type",
        path=path,
        column=column,
    )


def _plain_kind(kind: Any) -> Any:
    if types.is_dictionary(kind):
        return _plain_kind(kind.value_type)
    is_text = types.is_large_string(kind) or types.is_string_view(kind)
    return pyarrow.string() if is_text else kind


def _converted(array: Any, kind: Any) -> Any:
    plain = array.dictionary_decode() if types.is_dictionary(array.type) else array
    return plain if plain.type == kind else plain.cast(kind)


def _cut(rows: RawRows, begin: int, end: int) -> RawRows:
    """Returns the rows from position `begin` to `end`."""
    first = max(begin - rows.position, 0)
    count = end - rows.position - first
    columns = {name: each.slice(first, count) for name, each in rows.columns.items()}
    return replace(
        rows,
        first_row=rows.first_row + first,
        position=rows.position + first,
        num_rows=count,
        columns=columns,
        bad=(),
        index=rows.index + first,
    )


def _select_columns(data: ColumnSettings, columns: Sequence[str]) -> ColumnSettings:
    """Returns the section with only some features and numbers, and without labels and times."""
    update: dict[str, Any] = {"label": None, "weight": None, "time": None, "bad_rows": "refuse"}
    lists = list(data.lists)
    history = getattr(data, "history", None)
    types_of = dict(data.id_types)
    update["categorical"] = tuple(each for each in columns if each in data.categorical)
    if history is not None:
        update["history"] = None
        if history.name in columns:
            # Other files contain histories as a column.
            update["categorical"] += (history.name,)
            lists.append(history.name)
            if history.of in types_of:
                types_of[history.name] = types_of[history.of]
    update["numeric"] = tuple(each for each in columns if each in data.numeric)
    update["lists"] = tuple(each for each in lists if each in update["categorical"])
    update["types"] = {
        name: each for name, each in types_of.items() if name in update["categorical"]
    }
    fields = type(data).model_fields
    return data.model_copy(update={name: each for name, each in update.items() if name in fields})
