"""Finds the files of a data set by a path, a pattern or a URL of fsspec."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import fsspec  # type: ignore[import-untyped]  # it ships no types
import numpy as np
import numpy.typing as npt
import pyarrow
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from sparring.errors import DataError
from sparring_train.config.sections.table import LAKES

__all__ = ["TableFile", "TablePart", "find_files", "is_name_of_table"]

_FIELD_ID = b"PARQUET:field_id"
_GLOB = re.compile(r"[*?\[]")

_TEXT_ENDINGS = (".csv", ".tsv", ".txt", ".dat", ".data", ".inter", ".jsonl", ".json")
_ENDINGS = (".parquet", *_TEXT_ENDINGS, *(f"{each}.gz" for each in _TEXT_ENDINGS))
_NOT_IN_FOLDERS = (".txt", ".txt.gz", ".json", ".json.gz")
"""Endings of the files that are ignored in folders, where they are often a description."""
_SUPPORTED = f".parquet, or in {', '.join(_TEXT_ENDINGS)}, optionally with .gz"


@dataclass(frozen=True, slots=True)
class TablePart:
    """Properties of a file that belongs to a table of a lakehouse. The table can have other columns and
    fewer rows than its files."""

    schema: Any
    """Arrow schema of the table."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Column → Arrow scalar, which all rows have if the file does not contain the column: values of a
    partition."""
    field_ids: Mapping[str, int] | None = None
    """Column → its field id in Parquet files. None: columns are found by name."""
    deleted: npt.NDArray[np.int64] | None = None
    """``(n,)``, indices of the rows that the table has deleted, sorted."""

    def find_stored_name(self, name: str, schema: Any) -> str | None:
        """Returns the name of a column in a file with this Arrow schema; None if it is missing."""
        ids = {
            int(each.metadata[_FIELD_ID]): each.name
            for each in schema
            if each.metadata is not None and _FIELD_ID in each.metadata
        }
        if self.field_ids is None or not ids:
            return name if name in schema.names else None
        return ids.get(self.field_ids.get(name, -1))

    def find_constant(self, name: str) -> Any:
        """Returns the value of a column that the file does not contain."""
        if name in self.constants:
            return self.constants[name]
        return pyarrow.scalar(None, self.schema.field(name).type)


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file, local or in an object store."""

    name: str
    """Name in messages."""
    system: Any
    path: str
    part: TablePart | None = None
    """Its part of a table; None: the table has the columns and rows of its files."""
    key: str = ""
    """Path below the folder of the data set, which is the same if the folder is moved."""

    @property
    def deleted(self) -> npt.NDArray[np.int64] | None:
        return None if self.part is None else self.part.deleted

    @property
    def format(self) -> Literal["csv", "parquet"] | None:
        """Format by the ending of the name; `csv` is text of any form."""
        if self.path.endswith(".parquet"):
            return "parquet"
        return "csv" if self.path.endswith(_ENDINGS) else None

    @property
    def delimiter(self) -> str:
        """Separator of values that the ending of the name implies."""
        return "\t" if self.path.removesuffix(".gz").endswith((".tsv", ".inter")) else ","

    @property
    def has_json(self) -> bool:
        return self.path.removesuffix(".gz").endswith((".jsonl", ".json"))

    @property
    def is_local(self) -> bool:
        return isinstance(self.system, LocalFileSystem)

    def open(self) -> Any:
        """Opens the file for reading, decompressed if its name ends in `.gz`.

        Raises:
            OSError: the file cannot be read.
        """
        compression = "gzip" if self.path.endswith(".gz") else None
        return self.system.open(self.path, "rb", compression=compression)


def is_name_of_table(path: str) -> bool:
    """Returns whether a path or URL is a file or folder of examples, and not a configuration."""
    if path.endswith((".yaml", ".yml")):
        return False
    if path.endswith(".json") and "://" not in path:
        # A configuration, too, may be JSON; it has one object.
        try:
            with Path(path).open(encoding="utf-8") as file:
                return isinstance(json.loads(file.readline()), dict) and file.readline() != ""
        except (OSError, ValueError):
            return False
    return path.endswith(_ENDINGS) or Path(path).exists()


def find_files(path: str, form: str | None = None) -> tuple[TableFile, ...]:
    """Returns the files that match `path`, in order of name. With a `form`, their names may have any
    ending.

    Raises:
        DataError: there is no file, their formats differ or are unknown, or the store cannot be read.
    """
    if path.partition("://")[0] in LAKES:
        raise DataError(
            f"{path}: found the URL of a table, expected files; write a configuration with kind: table, "
            "which reads tables",
            path=path,
        )
    try:
        system, inner = fsspec.core.url_to_fs(path)
        root = inner.rpartition("/")[0]
        if _GLOB.search(inner):
            root = _GLOB.split(inner)[0].rpartition("/")[0]
            found = [name for name in sorted(system.glob(inner)) if not system.isdir(name)]
        elif system.isdir(inner):
            root = inner.rstrip("/")
            listed = sorted(
                each["name"] for each in system.ls(inner, detail=True) if each["type"] == "file"
            )
            found = [
                name
                for name in listed
                if (form is not None or name.endswith(_ENDINGS))
                and not name.endswith(_NOT_IN_FOLDERS)
                and name.rpartition("/")[2][0] not in "._"
            ]
        else:
            found = [inner] if system.exists(inner) else []
    except (OSError, ValueError, ImportError) as error:
        raise DataError(
            f"listing files of {path} failed: {error}; check data.path and access rights", path=path
        ) from error
    if not found:
        raise DataError(
            f"{path}: found no file; set data.path to a file, folder or pattern of files that end in "
            f"{_SUPPORTED}",
            path=path,
        )
    files = tuple(
        TableFile(_name(system, each), system, each, key=each[len(root) :].lstrip("/"))
        for each in found
    )
    formats = {each.format for each in files}
    if form is None and (len(formats) > 1 or None in formats):
        odd = next(each for each in files if each.format != files[0].format or not each.format)
        raise DataError(
            f"{odd.name}: names of files must all end in {_SUPPORTED}; restrict the pattern, rename the "
            "file, or set form=rows, form=json or form=lines if it is text",
            path=odd.name,
        )
    return files


def _name(system: Any, path: str) -> str:
    return path if isinstance(system, LocalFileSystem) else str(system.unstrip_protocol(path))
