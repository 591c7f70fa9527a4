"""The rows of a lookup service behind the storage contract, so that models read them as any others."""

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
    """Reads rows of a lookup service; writes are refused.

    A key without a row is not found, and reads as its initial value as anywhere else.

    Args:
        table: the declaration; its dim must be that of the served table.
        options: where the service is.
        client: of the service; None: one by `options`.

    Raises:
        InvalidArgumentError: the options name no service or two, or the table is another one.
        UnknownTableError: it is not served.
        StorageIOError: no server answers.
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
        # Rows are elsewhere.
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
        # A row of NaN that `on_failure` allows is read as such, and not as an initial value.
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
            f"{operation} on table {self.table.name!r}: rows of the role inference are read only; train "
            "through servers of the role parameters, with the option role='parameters', or with another "
            "storage whose snapshots are published",
            table=self.table.name,
            operation=operation,
        )

    def _check_state(self) -> None:
        table = self.table
        if table.state_width or table.state_method:
            raise InvalidArgumentError(
                f"table {table.name!r}: rows of a service of the role inference are read only, and have "
                f"no state of an optimizer; asked was for {table.row_label!r}. Freeze its module and "
                "give the optimizer the others alone; or train through servers of the role parameters, "
                "with the storage's option role='parameters' and the update method of the service",
                table=table.name,
            )

    def _check_same_state(self, served: TableConfig) -> None:
        table = self.table
        if table.has_other_state(served):
            raise InvalidArgumentError(
                f"table {table.name!r}: the service has rows of {served.row_label!r}, asked were rows of "
                f"{table.row_label!r}; give the update method of the service",
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
                f"table {table.name!r} is declared with dim {table.dim}, and served with dim "
                f"{dims[table.name]}; declare it as it was trained",
                table=table.name,
            )
        self._check_dtype(described.dtypes[table.name])
        self._check_state()

    def _check_dtype(self, served: str) -> None:
        table = self.table
        if table.dtype != "float32":
            raise InvalidArgumentError(
                f"table {table.name!r}: a lookup service gives float32 embeddings, asked were "
                f"{table.dtype}; declare the table float32 for the storage `remote`",
                table=table.name,
                served=served,
            )


_Client = TypeVar("_Client", bound=LookupClient)


def open_client(options: RemoteOptions, kind: type[_Client]) -> _Client:
    """A client of the service that options name.

    Raises:
        InvalidArgumentError: they name none, or two.
    """
    if (options.config is None) == (options.target is None):
        found = "none" if options.config is None else "both"
        raise InvalidArgumentError(
            f"storage remote: needs one of config, a YAML file, and target, host:port; found {found}"
        )
    if options.config is not None:
        return kind.from_config(options.config)
    return kind(str(options.target))
