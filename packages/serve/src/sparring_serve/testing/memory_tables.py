"""Slow reference implementation of serving tables, which stores rows in dictionaries."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sparring.adapter import initial_rows
from sparring.contracts import TableConfig, read_embeddings
from sparring.errors import SparringError
from sparring_serve.tables.contract import (
    FoundRows,
    Ids,
    LookupResult,
    ModelPart,
    ReserveRows,
    ScanResult,
    TableShape,
    Version,
    VersionGoneError,
    describe_initial_values,
)
from sparring_serve.wire.messages import GateMessage, Missing, RowDtype

__all__ = ["MemoryTables"]

Rows = npt.NDArray[np.float32]


class MemoryTables:
    """Versions of tables that a test provides.

    Args:
        tables: Declarations of the tables.
        rows: Rows of the first version, by table and key.
        keep: Number of versions to keep.
    """

    not_fresh = ""
    gate = GateMessage()

    def __init__(
        self,
        tables: Sequence[TableConfig],
        rows: Mapping[str, Mapping[int, npt.ArrayLike]],
        *,
        keep: int = 2,
        published: float = 0.0,
    ) -> None:
        self._tables = {each.name: each for each in tables}
        self._keep = keep
        self._lock = threading.Lock()
        self._kept: list[tuple[Version, Mapping[str, Mapping[int, Rows]]]] = []
        self._next: list[tuple[Version, Mapping[str, Mapping[int, Rows]]] | SparringError] = []
        self.is_closed = False
        self.publish(1, rows, published=published)
        self.refresh()

    def publish(
        self,
        step: int,
        rows: Mapping[str, Mapping[int, npt.ArrayLike]],
        *,
        published: float = 0.0,
    ) -> Version:
        """Adds a version for the next refresh; its hash is derived from its step."""
        version = Version("", step, f"{step:032x}", published)
        kept = {
            table: {key: np.asarray(row, np.float32) for key, row in of_table.items()}
            for table, of_table in rows.items()
        }
        self._next.append((version, kept))
        return version

    def damage_next(self, error: SparringError) -> None:
        """Makes the next refresh raise `error`."""
        self._next.append(error)

    def shapes(self) -> Mapping[str, TableShape]:
        newest = self._kept[0][1]
        return {
            name: TableShape(
                name, each.dim, "float32", len(newest.get(name, {})), describe_initial_values(each)
            )
            for name, each in self._tables.items()
        }

    def versions(self) -> Sequence[Version]:
        return [version for version, _ in self._kept]

    def lookup(
        self,
        asked: Sequence[tuple[str, Ids]],
        dtype: RowDtype,
        missing: Missing,
        version: str,
        reserve_rows: ReserveRows | None = None,
    ) -> LookupResult:
        kept = self._kept
        chosen = [each for each in kept if not version or each[0].hash == version]
        if not chosen:
            listed = ", ".join(each.hash for each, _ in kept)
            raise VersionGoneError(f"version {version} is not kept; request one of {listed}")
        found_version, rows = chosen[0]
        return LookupResult(
            found_version,
            [self._found(table, ids, rows.get(table, {}), missing) for table, ids in asked],
        )

    def _found(self, name: str, ids: Ids, rows: Mapping[int, Rows], missing: Missing) -> FoundRows:
        table = self._tables[name]
        out = np.zeros((len(ids), table.dim), np.float32)
        if missing == Missing.INITIAL and len(ids):
            out[:] = read_embeddings(table, initial_rows(ids, table))
        found = np.array([int(each) in rows for each in ids], np.bool_)
        for position in np.flatnonzero(found):
            out[position] = rows[int(ids[position])]
        return FoundRows(out, found)

    def scan(self, table: str, cursor: bytes, max_rows: int, version: str) -> ScanResult:
        chosen = [each for each in self._kept if not version or each[0].hash == version]
        if not chosen:
            raise VersionGoneError(f"version {version} is not kept")
        found_version, rows = chosen[0]
        keys = sorted(rows.get(table, {}))
        begin = int(cursor or b"0")
        end = min(begin + max_rows, len(keys))
        ids = np.array(keys[begin:end], np.int64)
        found = self._found(table, ids, rows.get(table, {}), Missing.ZERO).rows
        following = str(end).encode() if end < len(keys) else b""
        return ScanResult(ids, found, following, found_version)

    def read_model(self, kind: str, begin: int, max_bytes: int, version: str) -> ModelPart:
        for found_version, _ in self._kept:
            if not version or found_version.hash == version:
                return ModelPart(found_version)
        raise VersionGoneError(f"version {version} is not kept")

    def refresh(self) -> bool:
        with self._lock:
            if not self._next:
                return False
            newer = self._next.pop(0)
            if isinstance(newer, SparringError):
                raise newer
            self._kept = [newer, *self._kept][: self._keep]
            return True

    def gauges(self) -> Mapping[str, float]:
        return {"layers": 1.0}

    def close(self) -> None:
        self.is_closed = True
