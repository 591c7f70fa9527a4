"""Sample of the rows of a data set, from which the roles of its columns are guessed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
from pyarrow import parquet, types

from sparring.errors import DataError
from sparring_train.data.table.files import TableFile
from sparring_train.data.table.parquet_rows import check_indices, translate_parquet_errors
from sparring_train.data.table.row_groups import find_type_family

__all__ = [
    "SAMPLE_ROWS",
    "Sample",
    "SampledFile",
    "count_sample_rows_per_file",
    "sample_parquet",
]

SAMPLE_ROWS = 200_000
_MIN_FILE_ROWS = 1000


@dataclass(frozen=True, slots=True)
class SampledFile:
    """Rows of one file in a sample."""

    name: str
    num_rows: int
    first_row: int | None
    """Number of the first row, for messages; None if it is unknown, because rows were left out."""


@dataclass(slots=True)
class Sample:
    """Columns of the rows that were read, and the options for reading them."""

    values: dict[str, Any]
    """Column → Arrow array of the rows that were read."""
    num_sampled: int
    num_rows: int
    is_exact: bool
    """Whether `num_rows` is exact; otherwise it is estimated from the size of the files."""
    unusable: dict[str, str] = field(default_factory=dict)
    """Unusable column → reason, for example that a file does not contain it."""
    texts: dict[str, Any] = field(default_factory=dict)
    """Column of CSV → Arrow array of its texts."""
    wrong: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    """Column of CSV → mask of the rows whose text is of another kind than the column, if any."""
    parts: list[SampledFile] = field(default_factory=list)
    """Files, in the order of the rows."""
    num_broken: int = 0
    """Number of rows with a wrong number of fields, which are not in `num_sampled`."""
    first_broken: str | None = None
    keys: dict[str, Any] = field(default_factory=dict)
    """Keys of `data` with which text files are read, except defaults."""
    unlike: dict[str, str] = field(default_factory=dict)
    """Column of numbers that are written unlike others → description."""
    unnamed: int | None = None
    """Place of a column without a name."""
    header_doubt: str | None = None
    """Reason for which the first row may contain values."""
    date_doubt: str | None = None
    """Reason for which days and months may be exchanged."""
    unsure: list[str] = field(default_factory=list)
    typed: dict[str, str] = field(default_factory=dict)
    """Column → type that RecBole adds to its name."""

    test_files: str | None = None
    """Pattern of the names of files that seem to be the test."""
    validation_files: str | None = None

    def format_row_position(self, row: int) -> str:
        """Returns the file and, if it is known, the number of a row in it."""
        for part in self.parts:
            if row < part.num_rows:
                where = "" if part.first_row is None else f", row {part.first_row + row}"
                return f"{part.name}{where}"
            row -= part.num_rows
        raise AssertionError(row)


def count_sample_rows_per_file(num_files: int) -> int:
    """Returns the number of rows to read of each file."""
    return max(SAMPLE_ROWS // num_files, _MIN_FILE_ROWS)


def sample_parquet(files: Sequence[TableFile]) -> Sample:
    """Reads the first rows of each Parquet file.

    Raises:
        DataError: a file cannot be read, or contains two columns of one name.
    """
    parts: dict[str, list[tuple[str, Any]]] = {}
    schemas: list[list[str]] = []
    sampled: list[SampledFile] = []
    num_sampled = num_rows = 0
    for file in files:
        with translate_parquet_errors(file), file.open() as stream:
            opened = parquet.ParquetFile(stream)
            num_rows += opened.metadata.num_rows
            count = count_sample_rows_per_file(len(files))
            batches, num_read = [], 0
            for batch in opened.iter_batches(batch_size=min(count, 1 << 16)):
                for each in batch.columns:
                    check_indices(each, file.name)
                batches.append(batch)
                num_read += batch.num_rows
                if num_read >= count:
                    break
            table = pyarrow.Table.from_batches(batches, opened.schema_arrow)
        check_names(file, table.column_names)
        schemas.append(table.column_names)
        num_sampled += table.num_rows
        sampled.append(SampledFile(file.name, table.num_rows, 1))
        for name in table.column_names:
            parts.setdefault(name, []).append((file.name, table.column(name)))
    sample = Sample({}, num_sampled, num_rows, is_exact=True, parts=sampled)
    sample.unusable.update(find_missing_columns(files, schemas))
    for name, found in parts.items():
        kinds: dict[str, str] = {}
        for file_name, each in found:
            if "nulls" not in (kind := find_type_family(each.type)):
                kinds.setdefault(kind, file_name)
        if name not in sample.unusable and len(kinds) > 1:
            listed = " and ".join(f"{kind} in {file}" for kind, file in kinds.items())
            sample.unusable[name] = f"it has {listed}; write all files with one type"
        if name not in sample.unusable:
            try:
                sample.values[name] = _joined([each for _, each in found])
            except pyarrow.ArrowInvalid as error:
                sample.unusable[name] = f"its numbers have no common type: {error}"
    return sample


def _joined(parts: list[Any]) -> Any:
    decoded = [each.cast(_plain(each.type)) for each in parts]
    unsigned = next(
        (each.type for each in decoded if _element(each.type) == pyarrow.uint64()), None
    )
    if unsigned is not None:
        # Other files may store smaller ids as signed numbers.
        with suppress(pyarrow.ArrowException):
            decoded = [each.cast(unsigned) for each in decoded]
    tables = [pyarrow.table({"values": each}) for each in decoded]
    joined = pyarrow.concat_tables(tables, promote_options="permissive")
    return joined.column("values").combine_chunks()


def _plain(kind: Any) -> Any:
    return kind.value_type if types.is_dictionary(kind) else kind


def _element(kind: Any) -> Any:
    return kind.value_type if types.is_list(kind) or types.is_large_list(kind) else kind


def find_missing_columns(
    files: Sequence[TableFile], schemas: Sequence[Sequence[str]]
) -> dict[str, str]:
    """Returns the columns that are missing in some files, each with a description."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(name for names in schemas for name in names):
        without = [
            file.name for file, names in zip(files, schemas, strict=True) if name not in names
        ]
        if without:
            more = f" and {len(without) - 1:,} more" if len(without) > 1 else ""
            found[name] = f"it is missing in {without[0]}{more}"
    return found


def check_names(file: TableFile, names: Sequence[str]) -> None:
    """Raises `DataError` if two columns have the same name."""
    twice = [each for each in names if each and names.count(each) > 1]
    if twice:
        raise DataError(
            f"{file.name}: found several columns {twice[0]!r}; rename all but one of them",
            path=file.name,
            column=twice[0],
        )
