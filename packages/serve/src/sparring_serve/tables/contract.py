"""The contract between a lookup service and the tables that it serves.

`sparring_serve.tables.packed` fulfils it with mapped files, `sparring_serve.testing` with dictionaries.
All methods may run at the same time, on any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sparring import Columns, Storage
from sparring.adapter import dedup, initial_rows
from sparring.contracts import Dedup, Initializer, TableConfig
from sparring.errors import SparringError
from sparring_serve.wire.messages import InitialValues, Missing, RowDtype

__all__ = [
    "FoundRows",
    "Ids",
    "LookupResult",
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


class VersionGoneError(SparringError):
    """A version was named that is not kept: ask for the newest."""


@dataclass(frozen=True, slots=True)
class Version:
    """One consistent state of all tables.

    Args:
        run: that trained it, or empty.
        step: of training.
        hash: of its manifest: it names the version.
        published: when it was written, in seconds since 1970.
    """

    run: str
    step: int
    hash: str
    published: float


@dataclass(frozen=True, slots=True)
class TableShape:
    """One table.

    Args:
        name: of the table.
        dim: elements of an embedding.
        dtype: of the stored rows: ``float32``, ``float16``, ``bfloat16``, ``int8`` or ``int4``.
        num_rows: rows, or a bound of them.
        initial: what keys without a row read as.
        is_bound: whether there may be fewer rows than `num_rows`, because keys of several layers, or keys
            that were erased, are counted more than once.
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
    """``(n, dim)`` float32; ``(n, dim + 4)`` uint8 where int8 was asked for and is stored."""
    found: npt.NDArray[np.bool_]
    """``(n,)``: whether the id has a row."""
    failed: npt.NDArray[np.bool_] | None = None
    """``(n,)``: whether the row could not be read; such rows are zeros and not found. None: all were
    read."""


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Rows of one version, of all tables of a lookup."""

    version: Version
    tables: Sequence[FoundRows]
    failure: str = ""
    """Why rows are marked as failed; empty if all rows were read."""


@dataclass(frozen=True, slots=True)
class ScanResult:
    """A chunk of a scan."""

    ids: Ids
    rows: npt.NDArray[np.float32]
    """``(n, dim)``"""
    cursor: bytes
    """Where the next chunk begins; empty: there is none."""
    version: Version


class ServingTables(Protocol):
    """Tables of one folder of serving snapshots, in the versions that are kept."""

    not_fresh: str
    """Why the newest version is not served and an older one is; empty: the newest is served."""

    def shapes(self) -> Mapping[str, TableShape]:
        """The tables of the newest version, by name."""

    def versions(self) -> Sequence[Version]:
        """The versions that are kept, the newest first."""

    def lookup(
        self, asked: Sequence[tuple[str, Ids]], dtype: RowDtype, missing: Missing, version: str
    ) -> LookupResult:
        """Rows of tables that exist, all of one version; changes nothing.

        Rows that cannot be read now, because a backend behind the tables fails, are marked as failed.

        Args:
            asked: table and ids; ids may repeat.
            dtype: a hint: rows that are stored as int8 may be given so.
            missing: INITIAL or ZERO.
            version: the hash of one that is kept; empty: the newest.

        Raises:
            VersionGoneError: it is not kept.
        """

    def scan(self, table: str, cursor: bytes, most_rows: int, version: str) -> ScanResult:
        """Some rows of a table of one version, from a cursor on.

        Args:
            table: its name.
            cursor: as an earlier call gave it; empty to begin.
            most_rows: of the chunk.
            version: the hash of one that is kept; empty: the newest.

        Raises:
            VersionGoneError: it is not kept.
            InvalidArgumentError: `cursor` is none.
            UnsupportedError: these tables cannot be scanned.
        """

    def refresh(self) -> bool:
        """Takes the newest version; returns whether there was a newer one.

        Raises:
            SparringError: a newer one is refused (a gap, another base, damage); the old one serves on.
        """

    def gauges(self) -> Mapping[str, float]:
        """Gauges of the newest version, as ``layers`` and ``mapped_bytes``."""

    def close(self) -> None:
        """Frees everything. No other call may be under way, and none may follow."""


def found_rows(storage: Storage, table: TableConfig, ids: Ids, missing: Missing) -> FoundRows:
    """Embeddings of a storage, and what ids without a row read as.

    Args:
        storage: of the table.
        table: its declaration.
        ids: they may repeat.
        missing: INITIAL; otherwise the storage's zeros are given.
    """
    if not len(ids):
        return FoundRows(np.empty((0, table.dim), np.float32), np.empty(0, np.bool_))
    once = dedup(ids)
    result = storage.find(once.keys, Columns(0, table.dim))
    return in_order_of_ids(once, FoundRows(result.rows, result.found), table, missing)


def in_order_of_ids(
    once: Dedup, read: FoundRows, table: TableConfig, missing: Missing
) -> FoundRows:
    """The rows of `read`, which are those of distinct keys, for each id of a request.

    Args:
        once: the distinct keys and where each id is among them.
        read: their rows, as the storage returned them.
        table: its declaration.
        missing: INITIAL; otherwise keys without a row keep the storage's zeros.
    """
    rows = read.rows.astype(np.float32, copy=False)
    has_none = ~read.found if read.failed is None else ~(read.found | read.failed)
    unseen = np.flatnonzero(has_none)
    if missing == Missing.INITIAL and len(unseen):
        rows[unseen] = initial_rows(once.keys[unseen], table)
    if len(once.keys) == len(once.inverse):
        # Keys are in the order of ids if none repeats.
        return FoundRows(rows, read.found, read.failed)
    failed = None if read.failed is None else read.failed[once.inverse]
    return FoundRows(rows[once.inverse], read.found[once.inverse], failed)


def describe_initial_values(table: TableConfig) -> InitialValues:
    """Description of what keys of a declared table without a row read as."""
    initializer = table.initializer
    assert isinstance(initializer, Initializer)  # TableConfig sees to it
    first, second = initializer.parameters(table.dim)
    return InitialValues(initializer.kind, first, second, table.seed, table.dtype)
