"""A table of a serving snapshot as a read-only storage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

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
from sparring.errors import InvalidArgumentError, SnapshotError, UnsupportedError
from sparring_packed.options import PackedOptions
from sparring_packed.tables import PackedTables

__all__ = ["PackedStorage", "found_table"]

_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}


class PackedStorage(Storage):
    """Rows of one table in the newest version that `refresh` loaded.

    Args:
        table: the table as it was trained, without optimizer state, because only embeddings are stored.
        options: selects the serving snapshot.

    Raises:
        InvalidArgumentError: the table differs from the table in the serving snapshot.
        UnknownTableError: the serving snapshot has no such table.
        SnapshotError: there is no serving snapshot, or it is damaged.
    """

    capabilities = Capabilities(persistent=True, shared=True, concurrent_reads=True)

    def __init__(self, table: TableConfig, options: PackedOptions) -> None:
        super().__init__(table)
        self._tables = PackedTables(options.path, verify=options.verify, cache=options.cache)
        try:
            self._check_fits()
        except BaseException:
            self._tables.close()
            raise

    def refresh(self) -> bool:
        """Loads a newer version; see `PackedTables.refresh`. Returns whether there was one."""
        self._check_open()
        return self._tables.refresh()

    @property
    def memory_bytes(self) -> int:
        self._check_open()
        return self._tables.mapped_bytes

    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        whole = self._tables.find(self.table.name, keys)
        rows[...] = whole.rows[:, columns.begin : columns.end]
        found[...] = whole.found

    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        for keys, rows in self._tables.scan(self.table.name, chunk_rows):
            self._check_open()
            wanted = rows[:, columns.begin : columns.end].astype(self.table.numpy_dtype)
            yield ScanChunk(keys, wanted, np.zeros(len(keys), np.uint64))

    def _size_impl(self) -> int:
        if self._tables.num_layers == 1:
            return self._tables.tables[self.table.name].num_rows
        # For a chain of deltas, the layers only provide upper bounds.
        return sum(len(keys) for keys, _ in self._tables.scan(self.table.name))

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        self._refuse("upsert")

    def _erase_impl(self, keys: Keys) -> int:
        self._refuse("erase")

    def _clear_impl(self) -> None:
        self._refuse("clear")

    def _close_impl(self) -> None:
        self._tables.close()

    def _refuse(self, operation: str) -> NoReturn:
        raise UnsupportedError(
            f"{operation} on table {self.table.name!r}: {self._tables.url} is a serving snapshot, which "
            "is read-only; train with another storage, save, and publish a newer one",
            table=self.table.name,
            operation=operation,
        )

    def _check_fits(self) -> None:
        table = self.table
        found = self._tables.tables.get(table.name)
        if found is None:
            self._tables.find(table.name, ())
            return
        if table.state_width or table.state_method:
            raise InvalidArgumentError(
                f"table {table.name!r}: a serving snapshot is read-only and has no optimizer state, but "
                f"{table.row_label!r} was requested. Freeze its module and pass only the other modules "
                "to the optimizer; or train with another storage, save, and publish",
                table=table.name,
            )
        if table.dtype == "int8":
            raise UnsupportedError(
                f"table {table.name!r}: the storage 'packed' does not return rows of int8, found a "
                "table of int8; load the training snapshot instead",
                table=table.name,
            )
        if (found.dim, _DTYPES[found.trained_dtype]) != (table.dim, table.dtype):
            raise InvalidArgumentError(
                f"table {table.name!r} is declared as {table.dtype} x {table.dim}, but the serving "
                f"snapshot {self._tables.url} was trained as {_DTYPES[found.trained_dtype]} x "
                f"{found.dim}; declare it like the snapshot",
                table=table.name,
            )


def found_table(table: TableConfig, options: PackedOptions) -> TableConfig | None:
    """Returns the table whose rows are in a serving snapshot, or None if there is none."""
    try:
        with PackedTables(options.path, verify="open", cache=options.cache) as tables:
            return table.with_state(0) if table.name in tables.tables else None
    except SnapshotError:
        return None
