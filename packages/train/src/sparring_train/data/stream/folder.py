"""A folder to which Parquet files are added, as a stream.

    events/00-morning.parquet    rows 0 to 999      offset of a row: its number in all files, in the
    events/01-noon.parquet       rows 1000 to 1499  order of their names

Subfolders, if there are any, are the partitions. A file must appear complete, by a rename, and must
never change. Names that start with `.` or `_` are ignored.

If the names of files are numbers, such as ``00001000.parquet``, the number is the offset of the first
row. Then the oldest files may be removed, because a missing row is detected.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec  # type: ignore[import-untyped]  # it ships no types
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]
from pyarrow import parquet

from sparring.errors import DataError
from sparring_train.data.table.files import TableFile
from sparring_train.data.table.parquet_rows import translate_parquet_errors
from sparring_train.streams import OffsetGoneError, StreamMessage, StreamRead

__all__ = ["FolderSource"]

_ENDING = ".parquet"
_ROOT = "."
"""Name of the only partition of a folder without subfolders."""
_POLL_SECONDS = 0.05
"""Time between two listings of a folder."""
_MAX_REMOTE_POLL_SECONDS = 1.0
"""The same for an object store that has had no new file for a while. Each listing is a request."""


@dataclass(frozen=True, slots=True)
class _File:
    file: TableFile
    name: str
    begin: int
    """Offset of its first row."""
    end: int
    group_ends: tuple[int, ...]
    """Offset after the last row of each row group."""


class FolderSource:
    """See the module. `options` is not used.

    Raises:
        DataError: the folder does not exist or cannot be read.
    """

    def __init__(self, url: str, options: Any = None) -> None:
        self._url = url
        try:
            self._system, path = fsspec.core.url_to_fs(url)
            self._path = path.rstrip("/")
            is_folder = self._system.isdir(self._path)
        except (OSError, ValueError, ImportError) as error:
            raise DataError(
                f"opening the stream {url} failed: {error}; check data.url, access rights, and that the "
                "plugin for this kind of stream is installed",
                path=url,
            ) from error
        if not is_folder:
            raise DataError(
                f"opening the stream {url} failed: found no folder; create it, or set the URL to a "
                "folder of Parquet files or to a broker",
                path=url,
            )
        is_local = isinstance(self._system, LocalFileSystem)
        self._max_poll_seconds = _POLL_SECONDS if is_local else _MAX_REMOTE_POLL_SECONDS
        self._files: dict[str, list[_File]] = {}
        # Partition → time of the next listing, and time between listings.
        self._polls: dict[str, tuple[float, float]] = {}
        self._group: tuple[str, int, Any] | None = None

    def partitions(self) -> Sequence[str]:
        """Returns the names of subfolders, or one name if there are none."""
        folders = [each["name"] for each in self._list(self._path) if each["type"] == "directory"]
        names = [name.rpartition("/")[2] for name in folders]
        return [name for name in sorted(names) if name[0] not in "._"] or [_ROOT]

    def earliest_offsets(self) -> Mapping[str, int]:
        return {name: files[0].begin if files else 0 for name, files in self._all()}

    def end_offsets(self) -> Mapping[str, int]:
        return {name: files[-1].end if files else 0 for name, files in self._all()}

    def read(self, partition: str, offset: int, max_events: int, deadline: float) -> StreamRead:
        """Returns the rows from `offset` to at most the end of their row group, as one message."""
        files = self._files.get(partition, [])
        while not files or files[-1].end <= offset:
            due, pause = self._polls.get(partition, (0.0, _POLL_SECONDS))
            time.sleep(max(min(due, deadline) - time.monotonic(), 0))
            if due > deadline:
                return StreamRead(offset)
            files = self._listed(partition)
            if files and files[-1].end > offset:
                self._polls.pop(partition, None)
                break
            due = time.monotonic() + pause
            self._polls[partition] = due, min(2 * pause, self._max_poll_seconds)
        if offset < files[0].begin:
            raise OffsetGoneError(self._url, partition, offset, files[0].begin)
        file = files[bisect_right([each.begin for each in files], offset) - 1]
        number = bisect_right(file.group_ends, offset)
        begin = file.begin if number == 0 else file.group_ends[number - 1]
        rows = self._rows(file, number).slice(offset - begin, max_events)
        batch = rows.combine_chunks().to_batches()[0]
        return StreamRead(offset + batch.num_rows, [StreamMessage(offset, batch)])

    def close(self) -> None:
        """Releases the cached rows."""
        self._group = None

    def _rows(self, file: _File, number: int) -> Any:
        """Returns a row group, of which the last one is cached."""
        if self._group is None or self._group[:2] != (file.file.path, number):
            with translate_parquet_errors(file.file), file.file.open() as opened:
                table = parquet.ParquetFile(opened).read_row_group(number)
            self._group = file.file.path, number, table
        return self._group[2]

    def _all(self) -> list[tuple[str, list[_File]]]:
        return [(name, self._listed(name)) for name in self.partitions()]

    def _list(self, path: str) -> list[dict[str, Any]]:
        try:
            self._system.invalidate_cache(path)
            found: list[dict[str, Any]] = self._system.ls(path, detail=True)
        except OSError as error:
            raise DataError(
                f"reading {self._url} failed: {error}; check that the folder exists, and access rights",
                path=self._url,
            ) from error
        return found

    def _listed(self, partition: str) -> list[_File]:
        """Lists the files of a partition again."""
        path = self._path if partition == _ROOT else f"{self._path}/{partition}"
        paths = [
            each["name"]
            for each in self._list(path)
            if each["type"] == "file"
            and each["name"].endswith(_ENDING)
            and each["name"].rpartition("/")[2][0] not in "._"
        ]
        paths.sort(key=_order)
        known = {each.file.path: each for each in self._files.get(partition, [])}
        files: list[_File] = []
        for each in paths:
            end = files[-1].end if files else None
            files.append(known.pop(each) if each in known else self._opened(each, end))
            if end is not None and files[-1].begin != end:
                raise DataError(
                    f"reading {self._url}, partition {partition}: found {files[-1].name} with the first "
                    f"row {files[-1].begin}, expected {end}, because files are added in the order of "
                    "their names; restore the original names and files",
                    path=files[-1].name,
                )
        if known and not all(_number(each.name) is not None for each in known.values()):
            name = next(iter(known.values())).name
            raise DataError(
                f"reading {self._url}, partition {partition}: {name} was removed, so the "
                "numbers of later rows are unknown; restore it, or name files by their first row",
                path=name,
            )
        self._files[partition] = files
        return files

    def _opened(self, path: str, begin: int | None) -> _File:
        file = TableFile(str(self._system.unstrip_protocol(path)), self._system, path)
        with translate_parquet_errors(file), file.open() as opened:
            footer = parquet.ParquetFile(opened).metadata
        name = path.rpartition("/")[2]
        number = _number(name)
        end = first = number if number is not None else begin or 0
        ends = []
        for group in range(footer.num_row_groups):
            end += footer.row_group(group).num_rows
            ends.append(end)
        return _File(file, name, first, end, tuple(ends))


def _order(path: str) -> tuple[int, str]:
    """Returns the key by which files are sorted: numbers by value, other names after them."""
    name = path.rpartition("/")[2]
    number = _number(name)
    return (sys.maxsize if number is None else number, name)


def _number(name: str) -> int | None:
    """Returns the number that a name consists of; None for other names."""
    stem = name.removesuffix(_ENDING)
    return int(stem) if stem.isascii() and stem.isdigit() else None
