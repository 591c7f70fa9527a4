"""Tables of Delta Lake: the log contains the files of a version, with partitions and deleted rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import deltalake
import fsspec  # type: ignore[import-untyped]  # it ships no types
import numpy as np
import pyarrow
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from sparring.errors import DataError
from sparring_train.data.lake.conditions import parse_conditions
from sparring_train.data.lake.table import Version, fingerprint_of
from sparring_train.data.table.files import TableFile, TablePart
from sparring_train.data.table.parquet_rows import ParquetRows

__all__ = ["DeltaLake"]

_FEATURES = {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of the protocol that `DeltaLake` reads correctly."""
_NONE = np.empty(0, np.int64)
_PARTITION = "partition."
"""Prefix of the columns of partition values in the add actions."""


class DeltaLake:
    """See `LakeTable`. Credentials come from the environment, as deltalake reads them.

    Args:
        location: absolute path of the table, or its URL in an object store.
        version: a number, or a time in ISO 8601: the version at that time.
        conditions: conditions on partition columns.

    Raises:
        DataError: the table needs a feature that is not supported.
    """

    def __init__(self, location: str, version: Version, conditions: Sequence[str]) -> None:
        if "://" not in location and not location.startswith("/"):
            raise DataError(
                f"data.path: found delta://{location}, expected an absolute path (delta:///data/clicks) "
                "or a URL (delta://s3://bucket/clicks)"
            )
        self._url = f"delta://{location}"
        self._conditions = parse_conditions(conditions)
        is_number = version is None or isinstance(version, int)
        self._table = deltalake.DeltaTable(location, version=version if is_number else None)
        if not is_number:
            self._table.load_as_version(version)
        protocol = self._table.protocol()
        unknown = sorted({*(protocol.reader_features or ())} - _FEATURES)
        mode = self._table.metadata().configuration.get("delta.columnMapping.mode", "none")
        if mode != "none":
            unknown.append(f"columnMapping ({mode})")
        if unknown:
            raise DataError(
                f"reading {self._url}: the table uses {', '.join(unknown)}, supported are "
                f"{', '.join(sorted(_FEATURES))}; write the data to a table without these features",
                path=self._url,
            )

    @property
    def version(self) -> int:
        return int(self._table.version())

    @property
    def fingerprint(self) -> str:
        deleted = self._deleted
        return fingerprint_of(
            f"{each.path} {each.num_bytes} {deleted.get(each.path, _NONE).tolist()}"
            for each in self._entries
        )

    def rows(self, columns: Sequence[str]) -> ParquetRows:
        """Returns the rows of the files whose partitions satisfy the conditions."""
        schema = pyarrow.schema(self._table.schema().to_arrow())
        system, root = self._system
        files = [
            TableFile(
                f"{self._url}/{each.path}",
                system,
                f"{root}{each.path}",
                TablePart(schema, each.partition, deleted=self._deleted.get(each.path)),
                each.path,
            )
            for each in self._entries
        ]
        return ParquetRows(files, columns)

    @cached_property
    def _entries(self) -> list[_Entry]:
        """The chosen files, in order of path."""
        actions = pyarrow.table(self._table.get_add_actions(flatten=True))
        names = [name for name in actions.column_names if name.startswith(_PARTITION)]
        known = [name.removeprefix(_PARTITION) for name in names]
        for each in self._conditions:
            if each.column not in known:
                raise DataError(
                    f"data.filter: found the column {each.column!r}, expected a column of the "
                    f"partitions of {self._url}: {', '.join(known) or 'none'}; remove the condition",
                    column=each.column,
                )
        found = []
        for at in range(actions.num_rows):
            path = unquote(actions["path"][at].as_py())
            if "://" in path:
                raise DataError(
                    f"reading {self._url}: it contains the file {path} of another table, as in a "
                    "shallow clone, expected files in its own folder; make a deep clone",
                    path=path,
                )
            values = {name.removeprefix(_PARTITION): actions[name][at] for name in names}
            if all(each.holds(values[each.column]) for each in self._conditions):
                found.append(_Entry(path, actions["size_bytes"][at].as_py(), values))
        if not found:
            raise DataError(
                f"{self._url}, version {self.version}: found no file among {actions.num_rows}, expected "
                "at least one; change data.filter or data.version",
                path=self._url,
            )
        return sorted(found, key=lambda each: each.path)

    @cached_property
    def _deleted(self) -> dict[str, Any]:
        """Path of a file → indices of its deleted rows."""
        found = {}
        for batch in pyarrow.RecordBatchReader.from_stream(self._table.deletion_vectors()):
            for name, kept in zip(*batch.columns, strict=True):
                path = unquote(name.as_py()).removeprefix("file://").removeprefix(self._root)
                flags = kept.values.to_numpy(zero_copy_only=False)
                found[path] = np.flatnonzero(~flags)
        return found

    @property
    def _root(self) -> str:
        return unquote(self._table.table_uri.removeprefix("file://")).rstrip("/") + "/"

    @cached_property
    def _system(self) -> tuple[Any, str]:
        """File system of the table's folder, and the prefix of paths in it."""
        if self._root.startswith("/"):
            return fsspec.filesystem("file"), self._root
        handler = DeltaStorageHandler(self._table.table_uri)
        return _Files(fs.PyFileSystem(handler)), ""


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    """Path below the table's folder."""
    num_bytes: int
    partition: dict[str, Any]
    """Column → Arrow scalar."""


@dataclass(frozen=True, slots=True)
class _Files:
    """Opens files of an object store with the credentials of deltalake; see `TableFile.open`."""

    system: fs.FileSystem

    def open(self, path: str, mode: str, compression: str | None) -> Any:
        return self.system.open_input_file(path)
