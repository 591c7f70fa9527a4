"""The storage `remote` in the role `parameters`: lookups pull, and steps push."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from sparring import StepContainer
from sparring.adapter import resolve_method
from sparring.contracts import Columns, Keys, MethodChoice, Rows, TableConfig
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_serve.config import read_serving_config
from sparring_serve.parameters.client import ParameterClient
from sparring_serve.parameters.push_steps import TablePush, save_seconds
from sparring_serve.remote_options import RemoteOptions
from sparring_serve.remote_storage import RemoteStorage, open_client

__all__ = ["ParameterStorage", "find_served_table"]


class ParameterStorage(RemoteStorage):
    """Rows of a service whose tables learn. Optimizer state is behind them there, and is not read.

    A key without a row reads as the service says, whatever the declaration here.

    Args:
        table: the declaration, of the dim of the served table, with the state of its update method.
        options: where the service is.
        client: of the service; None: one by `options`.

    Raises:
        InvalidArgumentError, UnknownTableError, StorageIOError: as `RemoteStorage`.
    """

    def __init__(
        self, table: TableConfig, options: RemoteOptions, client: ParameterClient | None = None
    ) -> None:
        self.rows_dtype = table.dtype
        self._parameters = client or open_client(options, ParameterClient)
        super().__init__(table, options, self._parameters)

    def push(self, keys: Keys, gradients: Rows, choice: MethodChoice) -> None:
        """As `SupportsPush.push`. The service counts steps."""
        pushed = TablePush(keys, gradients, choice.method.name, choice.hyper.model_dump())
        self._parameters.push({self.table.name: pushed}, wait=self._options.wait)

    def replace_all(self, embeddings: Mapping[str, Rows]) -> None:
        """As `SupportsReplaceAll.replace_all`: the service loads a snapshot that this writes.

        It is written to the first of `parameters.folders`, by this process.

        Raises:
            UnsupportedError: the options have no `config`, so that the folder is unknown.
            InvalidArgumentError: a table is missing, is not of the service, or has another dim.
            SnapshotError: the service did not load it.
        """
        if self._options.config is None:
            raise UnsupportedError(
                f"replace all rows of table {self.table.name!r}: they go by a snapshot in a folder of "
                "the service, which its file names: give the storage config=… in place of target"
            )
        config = read_serving_config(self._options.config).parameters
        declared = {} if config is None else config.tables
        if declared.keys() != embeddings.keys():
            raise InvalidArgumentError(
                f"replace all rows: found tables {', '.join(sorted(embeddings))}, and the service has "
                f"{', '.join(sorted(declared))}; declare the same in parameters.tables"
            )
        assert config is not None
        name = f"given-{secrets.token_hex(8)}"
        with StepContainer() as container:
            for table, each in config.tables.items():
                container.declare(each.table(table), each.storage_choice)
                state = each.method.initial_state(
                    each.dim, each.hyper_parameters, container.tables[table].computing_dtype
                )
                container.set_state(table, state, each.method.name)
                container.assign(table, np.arange(len(embeddings[table])), embeddings[table])
            container.save(f"{config.folders[0].rstrip('/')}/{name}")
        self._parameters.load(name)

    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        table = self.table
        if columns.end > table.dim:
            raise UnsupportedError(
                f"find on table {table.name!r}: a service gives embeddings, and keeps the optimizer's "
                "state behind them; train with an update method, which steps push to the service: "
                'sparring_torch.Optimizer(modules, "adagrad", lr=…)',
                table=table.name,
                operation="find",
            )
        answer = self._client.pull(
            {table.name: keys}, deadline_seconds=self._options.deadline_seconds
        )
        found[:] = True
        rows[:] = answer.rows[table.name][:, columns.begin : columns.end]

    def _flush_impl(self) -> None:
        # Pushes that were queued may have failed: only a flush tells.
        self._parameters.flush()

    def _refuse(self, operation: str) -> NoReturn:
        raise UnsupportedError(
            f"{operation} on table {self.table.name!r}: rows of a service of the role parameters change "
            "by pushes only; train on one rank with an update method, as "
            'sparring_torch.Optimizer(modules, "adagrad", lr=…)',
            table=self.table.name,
            operation=operation,
        )

    def _check_dtype(self, served: str) -> None:
        table = self.table
        self.rows_dtype = served
        if table.dtype not in ("float32", served):
            raise InvalidArgumentError(
                f"table {table.name!r} is declared {table.dtype}, and the service has its rows in "
                f"{served}; declare `dtype: {table.dtype}` in parameters.tables, or {served} here",
                table=table.name,
            )

    def _check_state(self) -> None:
        self._check_same_state(find_served_table(self.table, self._parameters, self._options))


def find_served_table(
    table: TableConfig, client: ParameterClient, options: RemoteOptions
) -> TableConfig:
    """The declaration with the state that the service has behind its rows."""
    described = client.describe(deadline_seconds=options.deadline_seconds)
    save_seconds(described)  # refuses servers of another role
    answer = next(iter(described.shards.values()))
    for each in answer.parameters.tables:
        if each.table == table.name:
            method = resolve_method(each.update_method)
            return table.with_state(method.state_width(table.dim), method.name)
    return table
