"""The contract between a lookup service and the tables that it serves.

`sparring_serve.tables.packed` implements it with mapped files, `sparring_serve.testing` with
dictionaries. All methods must be thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sparring import Columns, Storage
from sparring.adapter import dedup, initial_rows
from sparring.contracts import Dedup, Initializer, TableConfig, read_embeddings
from sparring.errors import SparringError
from sparring_serve.wire.messages import (
    GateMessage,
    InitialValues,
    Missing,
    ModelFileMessage,
    RowDtype,
)

__all__ = [
    "FoundRows",
    "Ids",
    "LookupResult",
    "ModelPart",
    "ReserveRows",
    "ScanResult",
    "ServingTables",
    "TableShape",
    "Version",
    "VersionGoneError",
    "found_rows",
    "in_order_of_ids",
    "describe_initial_values",
]

Ids = npt.NDArray[np.int64]
ReserveRows = Callable[[], Sequence[npt.NDArray[Any]]]


class VersionGoneError(SparringError):
    """The requested version is no longer kept: request the newest."""


@dataclass(frozen=True, slots=True)
class Version:
    """One consistent state of all tables.

    Args:
        run: Run that trained it, or empty.
        step: Training step.
        hash: Hash of its manifest, which identifies the version.
        published: Time of its publication, in seconds since 1970.
    """

    run: str
    step: int
    hash: str
    published: float


@dataclass(frozen=True, slots=True)
class TableShape:
    """Description of one table.

    Args:
        name: Name of the table.
        dim: Number of elements of an embedding.
        dtype: Data type of the stored rows: ``float32``, ``float16``, ``bfloat16``, ``int8`` or
            ``int4``.
        num_rows: Number of rows, or an upper bound.
        initial: Initial values of keys without a row.
        is_bound: Whether `num_rows` is an upper bound, because it counts keys in several layers more
            than once, and erased keys.
    """

    name: str
    dim: int
    dtype: str
    num_rows: int
    initial: InitialValues
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows of one table, in the order of the ids."""

    rows: npt.NDArray[Any]
    """``(n, dim)`` float32; ``(n, dim + 4)`` uint8 if int8 was requested and is stored."""
    found: npt.NDArray[np.bool_]
    """``(n,)``: whether the id has a row."""
    failed: npt.NDArray[np.bool_] | None = None
    """``(n,)``: whether the row could not be read; such rows are zeros and not found. None if all
    rows were read."""


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Rows of all tables of a lookup, in one version."""

    version: Version
    tables: Sequence[FoundRows]
    failure: str = ""
    """Reason why rows are marked as failed; empty if all rows were read."""


@dataclass(frozen=True, slots=True)
class ScanResult:
    """A chunk of a scan."""

    ids: Ids
    rows: npt.NDArray[np.float32]
    """``(n, dim)``"""
    cursor: bytes
    """Start of the next chunk; empty after the last chunk."""
    version: Version


@dataclass(frozen=True, slots=True)
class ModelPart:
    """Files of the model in one version, and a part of one of them."""

    version: Version
    files: Sequence[ModelFileMessage] = ()
    """Empty if the version contains only rows."""
    content: bytes = b""


class ServingTables(Protocol):
    """Tables of a folder of serving snapshots, in the kept versions."""

    not_fresh: str
    """Reason why an older version is served; empty if the newest is served."""
    gate: GateMessage
    """State of the gate of the folder, as of the last refresh."""

    def shapes(self) -> Mapping[str, TableShape]:
        """Returns the tables of the newest version by name."""

    def versions(self) -> Sequence[Version]:
        """Returns the kept versions, newest first."""

    def lookup(
        self,
        asked: Sequence[tuple[str, Ids]],
        dtype: RowDtype,
        missing: Missing,
        version: str,
        reserve_rows: ReserveRows | None = None,
    ) -> LookupResult:
        """Reads rows of existing tables in one version, without side effects.

        Rows that cannot be read because a backend fails are marked as failed.

        Args:
            asked: Tables and ids; ids may repeat.
            dtype: Hint: int8 rows may be returned as stored.
            missing: INITIAL or ZERO.
            version: Hash of a kept version; empty means the newest.
            reserve_rows: Returns the places of the rows of each table in the reply, in the requested
                dtype. Tables that can read rows into given memory call it, and do not keep the
                arrays.

        Raises:
            VersionGoneError: The version is not kept.
        """

    def scan(self, table: str, cursor: bytes, max_rows: int, version: str) -> ScanResult:
        """Returns a chunk of rows of a table in one version, starting at a cursor.

        Args:
            table: Name of the table.
            cursor: Cursor returned by the previous call; empty for the first chunk.
            max_rows: Maximum number of rows in the chunk.
            version: Hash of a kept version; empty means the newest.

        Raises:
            VersionGoneError: The version is not kept.
            InvalidArgumentError: The cursor is invalid.
            UnsupportedError: These tables do not support scans.
        """

    def read_model(self, kind: str, begin: int, max_bytes: int, version: str) -> ModelPart:
        """Lists the files of the model in one version, and reads a part of one of them.

        Args:
            kind: Kind of the file; empty to read nothing.
            begin: Offset of the first byte.
            max_bytes: Maximum number of bytes.
            version: Hash of a kept version; empty means the newest.

        Raises:
            VersionGoneError: The version is not kept.
            InvalidArgumentError: The version has no file of this kind, or `begin` is after its end.
            UnsupportedError: These tables do not belong to a published model.
        """

    def refresh(self) -> bool:
        """Switches to the newest version, or to the pinned one; returns whether the version changed.

        Raises:
            SparringError: The newer version is rejected (missing delta, other base, damage); the old
                one remains served.
        """

    def gauges(self) -> Mapping[str, float]:
        """Returns gauges of the newest version, such as ``layers`` and ``mapped_bytes``."""

    def close(self) -> None:
        """Releases all resources. No other call may be in progress or follow."""


def found_rows(storage: Storage, table: TableConfig, ids: Ids, missing: Missing) -> FoundRows:
    """Reads embeddings from a storage, and fills in the values of ids without a row.

    Args:
        storage: Storage of the table.
        table: Declaration of the table.
        ids: Ids, which may repeat.
        missing: With INITIAL, ids without a row have their initial value; otherwise zeros.
    """
    if not len(ids):
        return FoundRows(np.empty((0, table.dim), np.float32), np.empty(0, np.bool_))
    once = dedup(ids)
    result = storage.find(once.keys, Columns(0, table.embedding_width))
    rows = read_embeddings(table, result.rows)
    return in_order_of_ids(once, FoundRows(rows, result.found), table, missing)


def in_order_of_ids(
    once: Dedup, read: FoundRows, table: TableConfig, missing: Missing
) -> FoundRows:
    """Expands the rows of distinct keys to the ids of a request.

    Args:
        once: The distinct keys, and the index of each id among them.
        read: Rows of the keys, as the storage returned them.
        table: Declaration of the table.
        missing: With INITIAL, keys without a row have their initial value; otherwise zeros.
    """
    rows = read.rows.astype(np.float32, copy=False)
    has_none = ~read.found if read.failed is None else ~(read.found | read.failed)
    unseen = np.flatnonzero(has_none)
    if missing == Missing.INITIAL and len(unseen):
        rows[unseen] = read_embeddings(table, initial_rows(once.keys[unseen], table))
    if len(once.keys) == len(once.inverse):
        # If no id repeats, the keys have the order of the ids.
        return FoundRows(rows, read.found, read.failed)
    failed = None if read.failed is None else read.failed[once.inverse]
    return FoundRows(rows[once.inverse], read.found[once.inverse], failed)


def describe_initial_values(table: TableConfig) -> InitialValues:
    """Returns a description of the initial values of a declared table."""
    initializer = table.initializer
    assert isinstance(initializer, Initializer)  # guaranteed by TableConfig
    first, second = initializer.parameters(table.dim)
    return InitialValues(initializer.kind, first, second, table.seed, table.dtype)
