"""Storage that reads the rows of a lookup service, so that models can use them like any other table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn, TypeVar

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
from sparring.errors import InvalidArgumentError, UnknownTableError, UnsupportedError
from sparring_serve.client.answer import RowStatus
from sparring_serve.client.lookup_client import LookupClient
from sparring_serve.remote_options import RemoteOptions

__all__ = ["RemoteStorage", "open_client"]


class RemoteStorage(Storage):
    """Reads rows from a lookup service; writes raise `UnsupportedError`.

    A key without a row is not found and reads as its initial value, as in all storages.

    Args:
        table: Declaration of the table; its dim must match the served table.
        options: Location of the service.
        client: Client of the service; None creates one from `options`.

    Raises:
        InvalidArgumentError: The options contain neither or both of `config` and `target`, or the
            declaration does not match the served table.
        UnknownTableError: The table is not served.
        StorageIOError: No server replies.
    """

    capabilities = Capabilities(shared=True, persistent=True, concurrent_reads=True)

    def __init__(
        self, table: TableConfig, options: RemoteOptions, client: LookupClient | None = None
    ) -> None:
        super().__init__(table)
        self._options = options
        self._client = open_client(options, LookupClient) if client is None else client
        try:
            self._check_table()
        except BaseException:
            self._client.close()
            raise

    @property
    def memory_bytes(self) -> int:
        # The rows are in other processes.
        return 0

    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        name = self.table.name
        answer = self._client.pull(
            {name: keys},
            missing="only_found",
            deadline_seconds=self._options.deadline_seconds,
        )
        # If `on_failure` returns NaN for a row, the storage reports it as found, not as initial value.
        found[:] = answer.found[name] | (answer.status[name] == RowStatus.FAILED)
        rows[:] = answer.rows[name][:, columns.begin : columns.end]

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        self._refuse("upsert")

    def _erase_impl(self, keys: Keys) -> int:
        self._refuse("erase")

    def _clear_impl(self) -> None:
        self._refuse("clear")

    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        chunks = self._client.scan(
            self.table.name,
            chunk_rows=chunk_rows,
            deadline_seconds=self._options.deadline_seconds,
        )
        for keys, rows in chunks:
            yield ScanChunk(
                keys, rows[:, columns.begin : columns.end], np.zeros(len(keys), np.uint64)
            )

    def _size_impl(self) -> int:
        described = self._client.describe(deadline_seconds=self._options.deadline_seconds)
        return sum(
            each.rows
            for answer in described.shards.values()
            for each in answer.tables
            if each.name == self.table.name
        )

    def _close_impl(self) -> None:
        self._client.close()

    def _refuse(self, operation: str) -> NoReturn:
        raise UnsupportedError(
            f"{operation} on table {self.table.name!r}: the role inference is read-only; train through "
            "servers of the role parameters, with the option role='parameters', or use another storage "
            "and publish its snapshots",
            table=self.table.name,
            operation=operation,
        )

    def _check_state(self) -> None:
        table = self.table
        if table.state_width or table.state_method:
            raise InvalidArgumentError(
                f"table {table.name!r}: a service of the role inference is read-only and stores no "
                f"optimizer state, found {table.row_label!r}. Freeze the module and exclude it from the "
                "optimizer; or train through servers of the role parameters, with the storage's option "
                "role='parameters' and the update method of the service",
                table=table.name,
            )

    def _check_same_state(self, served: TableConfig) -> None:
        table = self.table
        if table.has_other_state(served):
            raise InvalidArgumentError(
                f"table {table.name!r}: the service stores rows of {served.row_label!r}, and the "
                f"declaration requires {table.row_label!r}; use the update method of the service",
                table=table.name,
            )

    def _check_table(self) -> None:
        table = self.table
        described = self._client.describe(deadline_seconds=self._options.deadline_seconds)
        dims = described.dims
        if table.name not in dims:
            listed = ", ".join(sorted(dims)) or "none"
            raise UnknownTableError(
                f"table {table.name!r} is not served (served: {listed}); declare one of these",
                table=table.name,
            )
        if dims[table.name] != table.dim:
            raise InvalidArgumentError(
                f"table {table.name!r} is declared with dim {table.dim}, but served with dim "
                f"{dims[table.name]}; declare the dim that it was trained with",
                table=table.name,
            )
        self._check_dtype(described.dtypes[table.name])
        self._check_state()

    def _check_dtype(self, served: str) -> None:
        table = self.table
        if table.dtype != "float32":
            raise InvalidArgumentError(
                f"table {table.name!r}: a lookup service returns float32 embeddings, and the table is "
                f"declared as {table.dtype}; declare it as float32 for the storage `remote`",
                table=table.name,
                served=served,
            )


_Client = TypeVar("_Client", bound=LookupClient)


def open_client(options: RemoteOptions, kind: type[_Client]) -> _Client:
    """Creates a client from the options of the storage.

    Raises:
        InvalidArgumentError: The options contain neither or both of `config` and `target`.
    """
    if (options.config is None) == (options.target is None):
        found = "none" if options.config is None else "both"
        raise InvalidArgumentError(
            f"storage remote: specify either config, a YAML file, or target, host:port; found {found}"
        )
    if options.config is not None:
        return kind.from_config(options.config)
    return kind(str(options.target))
