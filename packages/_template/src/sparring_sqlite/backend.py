"""A storage in one SQLite file, with an integer key and a blob per row."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts import (
    Capabilities,
    Columns,
    EvictedRows,
    Keys,
    Rows,
    ScanChunk,
    Scores,
    Storage,
    TableConfig,
)
from sparring.errors import StorageIOError
from sparring_sqlite import SqliteOptions

_CACHE_BYTES = 8 << 20
_KEYS_PER_QUERY = 900  # all versions of SQLite accept 999 parameters


class SqliteStorage(Storage):
    """Stores rows in ``<folder>/<table>.sqlite``. A lock makes readers see only committed rows."""

    capabilities = Capabilities(persistent=True, concurrent_reads=True)

    def __init__(self, table: TableConfig, options: SqliteOptions) -> None:
        super().__init__(table)
        self.options = options
        self._lock = threading.RLock()
        path = options.folder / f"{table.name}.sqlite"
        try:
            options.folder.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise StorageIOError(f"{path}: cannot open: {error}; set another folder") from error
        try:
            self._run(f"PRAGMA cache_size = -{_CACHE_BYTES // 1024}")
            self._run("CREATE TABLE IF NOT EXISTS about (label TEXT)")
            for (label,) in self._run("SELECT label FROM about"):
                table.check_row_label(label, path)
            if not self._run("SELECT 1 FROM about"):
                self._run("INSERT INTO about VALUES (?)", (table.row_label,))
            self._run("CREATE TABLE IF NOT EXISTS rows (key INTEGER PRIMARY KEY, row BLOB)")
        except BaseException:
            self.close()
            raise

    @property
    def memory_bytes(self) -> int:
        self._check_open()
        return _CACHE_BYTES  # maximum that SQLite uses; rows are on disk

    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        position = {key: i for i, key in enumerate(keys.tolist())}
        rows[:], found[:] = 0, False
        wanted = sorted(position)  # in the order of keys, SQLite reads each page once
        for begin in range(0, len(wanted), _KEYS_PER_QUERY):
            part = wanted[begin : begin + _KEYS_PER_QUERY]
            marks = ",".join("?" * len(part))
            for key, row in self._run(f"SELECT key, row FROM rows WHERE key IN ({marks})", part):
                i = position[key]
                rows[i], found[i] = self._decode(row)[0, columns.begin : columns.end], True

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        order = np.argsort(keys)
        pairs = zip(keys[order].tolist(), map(np.ndarray.tobytes, rows[order]), strict=True)
        self._run("INSERT OR REPLACE INTO rows VALUES (?, ?)", many=pairs)
        return self._nothing_evicted()

    def _erase_impl(self, keys: Keys) -> int:
        doomed = ((key,) for key in sorted(keys.tolist()))
        with self._lock:
            before = self._database.total_changes
            self._run("DELETE FROM rows WHERE key = ?", many=doomed)
            return self._database.total_changes - before

    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        query = "SELECT key, row FROM rows WHERE key {} ? ORDER BY key LIMIT ?"
        pairs = self._run(query.format(">="), (-(2**63), chunk_rows))
        while pairs:
            keys = np.array([key for key, _ in pairs], np.int64)
            rows = self._decode(b"".join(row for _, row in pairs))[:, columns.begin : columns.end]
            yield ScanChunk(keys, rows.copy(), np.zeros(len(keys), np.uint64))
            self._check_open()
            pairs = self._run(query.format(">"), (pairs[-1][0], chunk_rows))

    def _size_impl(self) -> int:
        return int(self._run("SELECT count(*) FROM rows")[0][0])

    def _clear_impl(self) -> None:
        self._run("DELETE FROM rows")

    def _close_impl(self) -> None:
        with self._lock:
            self._database.close()

    def _decode(self, data: bytes) -> Rows:
        return np.frombuffer(data, self.table.numpy_dtype).reshape(-1, self.table.width)

    def _run(self, query: str, values: Any = (), many: Iterable[Any] | None = None) -> list[Any]:
        """Runs one statement, or one per item of `many`, in one transaction."""
        try:
            with self._lock, self._database as database:
                if many is None:
                    return database.execute(query, values).fetchall()
                return database.executemany(query, many).fetchall()
        except sqlite3.Error as error:
            raise StorageIOError(f"{self.table.name}.sqlite: {error}; check the file") from error
