"""Reads single columns of files of Parquet or Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from sparring.errors import DataError

__all__ = ["ColumnFile", "find_column_files"]

_ENDINGS = (".parquet", ".arrow", ".arrows", ".feather", ".ipc")
"""Files that are read in a folder."""

_HAS_SAMPLE = b"sparring.has_sample"
"""Key in the metadata of the schema; docs/reference/lookup-service.md, "Log of requests"."""


@dataclass(frozen=True, slots=True)
class ColumnFile:
    """A file of rows.

    Args:
        path: Path of the file.
        names: Names of its columns.
        num_rows: Number of its rows.
        content: The Arrow table of a file that is mapped; None for Parquet.
        has_sample: Whether a service logged its rows from samples of requests.
    """

    path: Path
    names: tuple[str, ...]
    num_rows: int
    content: Any = None
    has_sample: bool = False

    def column(self, name: str) -> Any:
        """Returns a column as an Arrow array.

        Args:
            name: Name of the column.

        Raises:
            DataError: The file is damaged.
        """
        try:
            table = self.content
            if table is None:
                table = parquet.read_table(self.path, columns=[name], partitioning=None)
            column = table.column(name).combine_chunks()
        except (OSError, pyarrow.ArrowException) as error:
            raise _unreadable(self.path, error) from error
        if isinstance(column, pyarrow.ChunkedArray):  # an older pyarrow, or a column without rows
            column = pyarrow.concat_arrays(column.chunks) if column.num_chunks else column.type
        return column if isinstance(column, pyarrow.Array) else pyarrow.array([], column)


def find_column_files(place: str) -> list[ColumnFile]:
    """Returns a file, or the files of a folder and its subfolders, in order of their paths.

    Empty files are left out. A server has created them, but written nothing yet.

    Raises:
        DataError: There is no file, or one is neither Parquet nor Arrow, or damaged.
    """
    path = Path(place)
    found = [path]
    if path.is_dir():
        found = sorted(
            each for each in path.rglob("*") if each.suffix in _ENDINGS and each.stat().st_size
        )
    if not found or not path.exists():
        raise DataError(
            f"skew: found no file at {place}, expected Parquet or Arrow files that end in "
            f"{', '.join(_ENDINGS)}; correct the path",
            path=place,
        )
    return [_open(each) for each in found]


def _open(path: Path) -> ColumnFile:
    try:
        with path.open("rb") as file:
            start = file.read(6)
        if start[:4] == b"PAR1":
            described = parquet.ParquetFile(path)
            names = tuple(described.schema_arrow.names)
            return ColumnFile(path, names, described.metadata.num_rows)
        mapped = pyarrow.memory_map(str(path))
        is_file = start == b"ARROW1"
        content = pyarrow.ipc.open_file(mapped).read_all() if is_file else _read_stream(mapped)
    except (OSError, pyarrow.ArrowException) as error:
        raise _unreadable(path, error) from error
    has_sample = _HAS_SAMPLE in (content.schema.metadata or {})
    return ColumnFile(path, tuple(content.column_names), content.num_rows, content, has_sample)


def _read_stream(mapped: Any) -> Any:
    """Reads a stream up to its last complete batch, because a server may still write the file."""
    reader = pyarrow.ipc.open_stream(mapped)
    batches = []
    while True:
        try:
            batches.append(reader.read_next_batch())
        except StopIteration:
            break
        except (OSError, pyarrow.ArrowInvalid):
            if mapped.tell() < mapped.size():
                raise
            break
    return pyarrow.Table.from_batches(batches, reader.schema)


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(
        f"skew: reading {path} failed: {error}; give files of Parquet, or Arrow files or streams",
        path=str(path),
    )
