"""Opens data of kind `table`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyarrow import types

from sparring.errors import DataError
from sparring_train.columns import ColumnBatch
from sparring_train.config.sections.table import HistoryConfig, TableData
from sparring_train.data.dataset import Dataset, OpenRequest
from sparring_train.data.file_identities import DATA_FILES, identify_files
from sparring_train.data.lake.table import is_lake, open_lake, read_lake
from sparring_train.data.table.decode import SKIP_ADVICE, Decoder, RawRows
from sparring_train.data.table.files import TableFile, find_files
from sparring_train.data.table.parquet_dataset import ParquetDataset
from sparring_train.data.table.parquet_rows import ParquetRows
from sparring_train.data.table.row_groups import TableRows
from sparring_train.data.table.strings import make_string_writer
from sparring_train.data.table.text.dataset import CsvDataset
from sparring_train.data.table.text.lists import split_lists
from sparring_train.data.table.text.rows import CsvRows

__all__ = ["open_table", "pin_table", "read_first_rows", "read_table"]

_BLOCK_ROWS = 1 << 16


def open_table(data: TableData, request: OpenRequest) -> Dataset:
    """Opens the examples of a section.

    Raises:
        DataError: there is no file, a column is missing, or the split cannot be computed.
    """
    strings = make_string_writer(data.dictionary, request)
    label = data.label if request.label is not None else None
    columns = _given(*data.categorical, *data.numeric, label, data.weight)
    users = data.history.by if data.history is not None else None
    needed = _given(*columns, data.time, users, *data.split_columns)
    if is_lake(data.path):
        lake = read_lake(data, data.path, needed)
        return ParquetDataset(data, request, lake.rows, columns, strings, lake.pinned)
    files = find_files(data.path, data.form)
    pinned: dict[str, dict[str, str]] = {}
    if request.snapshots_url is not None and not request.is_saved:
        pinned = {DATA_FILES: identify_files(files)}
    if files[0].format == "parquet":
        parquet = ParquetRows(files, needed)
        parquet.types.check_origins(data.types)
        return ParquetDataset(data, request, parquet, columns, strings, pinned)
    if data.read == "own":
        raise DataError(
            f"reading {data.path} with data.read: own requires Parquet files, which contain their number "
            "of rows; convert the files, or remove data.read",
            path=data.path,
        )
    _check_separator(data)
    # All ranks read the same rows, so only one needs to store the strings.
    strings = strings if request.rank == 0 else None
    return CsvDataset(data, request, CsvRows(files, data, needed), columns, strings, pinned)


def pin_table(data: TableData, saved: Mapping[str, Any] | None) -> TableData:
    """Returns the section with the way of drawing, and with the number of the version of a table; see
    `DataDescriptor.pin`."""
    pinned: dict[str, Any] = {}
    if data.draw is None:
        # Releases that drew by position did not store it.
        pinned["draw"] = "row" if saved is None else saved.get("draw", "position") or "row"
    if is_lake(data.path):
        version = data.version
        if version is None and saved is not None:
            version = saved.get("version")
        pinned["version"] = str(open_lake(data.path, version, data.filter).version)
    return data.model_copy(update=pinned)


def read_table(data: TableData, path: str) -> Iterator[ColumnBatch]:
    """Yields all rows of the files at `path`, in order, with the ids and numbers that `data` names.

    Raises:
        DataError: there is no file, a column is missing, a line has a wrong number of fields, or a value
            is invalid and `data.bad_rows` is not `skip`.
    """
    # Lines that cannot be divided into values are never skipped, because each row has a prediction.
    section = data.model_copy(
        update={"label": None, "weight": None, "time": None, "bad_rows": "refuse"}
    )
    if data.history is not None:
        section = _with_history_as_column(section, data.history)
    columns = _given(*section.categorical, *section.numeric)
    table: TableRows | None = None
    files: tuple[TableFile, ...] = ()
    if is_lake(path):
        table = read_lake(section, path, columns).rows
    else:
        files = find_files(path, section.form)
        if files[0].format == "parquet":
            table = ParquetRows(files, columns)
            table.types.check_origins(section.types)
    if table is not None:
        rows = table.read(table.groups, columns, _BLOCK_ROWS)
    else:
        _check_separator(section)
        rows = _read_csv(files, section, columns)
    decoder = Decoder(section.model_copy(update={"bad_rows": data.bad_rows}), None)
    for each in rows:
        given = {name: each.columns[name] for name in section.categorical}
        batch, is_good = decoder.decode(each)
        yield replace(batch, given=given, is_good=is_good)


def _read_csv(
    files: Sequence[TableFile], section: TableData, columns: Sequence[str]
) -> Iterator[RawRows]:
    """Yields all rows. Errors do not advise to skip lines, which `read_table` cannot."""
    try:
        yield from CsvRows(files, section, columns).read(columns)
    except DataError as error:
        raise DataError(str(error).replace(SKIP_ADVICE, ""), **error.details) from error


def read_first_rows(data: TableData, count: int) -> dict[str, Any]:
    """Returns column → Arrow array of the first `count` rows as training reads them, before strings are
    hashed and numbers are transformed."""
    names = (*data.categorical, *data.numeric, data.label, data.weight, data.time)
    columns = _given(*names)
    files = find_files(data.path, data.form)
    if files[0].format == "parquet":
        table = ParquetRows(files, columns)
        rows = next(iter(table.read(table.groups, columns, count)))
    else:
        rows = next(iter(CsvRows(files, data, columns).read(columns)))
    found = {name: array.slice(0, count) for name, array in rows.columns.items()}
    found = {
        name: each.dictionary_decode() if types.is_dictionary(each.type) else each
        for name, each in found.items()
    }
    for name in data.lists:
        separator = data.find_separator(name)
        if separator is not None and types.is_string(found[name].type):
            found[name] = split_lists(found[name], separator, True)
    return found


def _with_history_as_column(data: TableData, history: HistoryConfig) -> TableData:
    """Reads histories from a list column, because other files do not contain the run's earlier rows."""
    name, types = history.name, dict(data.types)
    if history.of in types:
        types[name] = types[history.of]
    lists, categorical = (*data.lists, name), (*data.categorical, name)
    return data.model_copy(
        update={"categorical": categorical, "lists": lists, "types": types, "history": None}
    )


def _check_separator(data: TableData) -> None:
    if data.lists and data.separator is None:
        raise DataError(
            f"reading {data.path}: data.lists contains {', '.join(data.lists)}, but data.separator is "
            "null; set it to the separator of ids in CSV lists, or convert the file to Parquet",
            path=data.path,
        )


def _given(*names: str | None) -> tuple[str, ...]:
    """Returns the names that are not None, without duplicates."""
    return tuple(dict.fromkeys(name for name in names if name is not None))
