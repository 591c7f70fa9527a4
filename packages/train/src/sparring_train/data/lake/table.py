"""Opens a version of a table of a lakehouse by its URL."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from sparring.errors import DataError, PluginError, SparringError
from sparring_train.config.sections.table import LAKES, TableData
from sparring_train.data.table.row_groups import TableRows

__all__ = [
    "LakeRows",
    "LakeTable",
    "Version",
    "fingerprint_of",
    "is_lake",
    "open_lake",
    "read_lake",
    "translate_lake_errors",
]

Version = int | str | None
"""Number of a version, another text that the format resolves to one, or None for the newest version."""


class _Format(NamedTuple):
    package: str
    module: str
    class_name: str


_FORMATS = {
    "delta": _Format("deltalake", "delta", "DeltaLake"),
    "iceberg": _Format("pyiceberg", "iceberg", "IcebergLake"),
    "lance": _Format("lance", "lance", "LanceLake"),
}


class LakeTable(Protocol):
    """One version of a table.

    The constructor gets the part of the URL after the scheme, the version, and `data.filter`.
    """

    @property
    def version(self) -> int:
        """Number of the version."""

    @property
    def fingerprint(self) -> str:
        """Hash of the names of the data files and of the deleted rows."""

    def rows(self, columns: Sequence[str]) -> TableRows:
        """Returns the rows, with these columns.

        Raises:
            DataError: a column is missing, or a file cannot be read.
        """


def is_lake(path: str) -> bool:
    """Returns whether a path is the URL of a table of a lakehouse."""
    return path.partition("://")[0] in LAKES


def open_lake(path: str, version: str | None, conditions: Sequence[str] = ()) -> LakeTable:
    """Opens a version of a table.

    Args:
        path: ``delta://<location>``, ``iceberg://<catalog>/<namespace>.<table>`` or
            ``lance://<location>``.
        version: see `data.version`.
        conditions: see `data.filter`.

    Raises:
        DataError: the table or the version does not exist, or its format is not supported.
        PluginError: the client library of the format is not installed.
    """
    scheme, _, location = path.partition("://")
    library = _FORMATS[scheme]
    try:
        importlib.import_module(library.package)
    except ImportError as error:
        raise PluginError(
            f"reading {path} needs {library.package}, which cannot be imported: {error}; run: pip "
            f'install "sparring-train[{scheme}]"'
        ) from error
    module = importlib.import_module(f"sparring_train.data.lake.{library.module}")
    with translate_lake_errors(path, version):
        known = int(version) if version is not None and version.isdigit() else version
        opened: LakeTable = getattr(module, library.class_name)(location, known, conditions)
        return opened


@contextmanager
def translate_lake_errors(path: str, version: object) -> Iterator[None]:
    """Raises errors of client libraries, which share no base class, as `DataError`."""
    try:
        yield
    except SparringError:
        raise
    except Exception as error:
        which = "the newest version" if version is None else f"version {version}"
        raise DataError(
            f"reading {which} of {path} failed: {type(error).__name__}: {error}; check data.path, "
            "data.version, data.filter and access rights",
            path=path,
        ) from error


@dataclass(frozen=True, slots=True)
class LakeRows:
    """The rows of a version, and values that identify them."""

    rows: TableRows
    pinned: Mapping[str, Any]
    """See `PinnedDataset.pinned`."""


def read_lake(data: TableData, path: str, columns: Sequence[str]) -> LakeRows:
    """Returns the rows of a table, with these columns.

    Args:
        data: the section. Its version and its filter are used if it has the same path.
        path: URL of the table.
        columns: required columns.

    Raises:
        DataError, PluginError: see `open_lake`. Or a column is missing, or a file cannot be read.
    """
    is_same = path == data.path
    version = data.version if is_same else None
    table = open_lake(path, version, data.filter if is_same else ())
    with translate_lake_errors(path, version):
        rows = table.rows(columns)
        rows.types.check_origins(data.types)
        return LakeRows(
            rows, {"data_version": table.version, "data_fingerprint": table.fingerprint}
        )


def fingerprint_of(parts: Iterable[str]) -> str:
    """Returns the hash of some texts, in any order."""
    text = "\n".join(sorted(parts))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
