"""The storage `remote` in the role `parameters`: lookups pull, and steps push."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import numpy.typing as npt

from sparring import resolve_method
from sparring.contracts import Columns, Keys, MethodChoice, Rows, TableConfig
from sparring.errors import UnsupportedError
from sparring_serve.parameters.client import ParameterClient
from sparring_serve.parameters.pushing import TablePush, save_seconds
from sparring_serve.remote_options import RemoteOptions
from sparring_serve.remote_storage import RemoteStorage, client_by

__all__ = ["ParameterStorage", "served_table"]


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
        self._parameters = client or client_by(options, ParameterClient)
        super().__init__(table, options, self._parameters)

    def push(self, keys: Keys, gradients: Rows, choice: MethodChoice) -> None:
        """As `SupportsPush.push`. The service counts steps."""
        pushed = TablePush(keys, gradients, choice.method.name, choice.hyper.model_dump())
        self._parameters.push({self.table.name: pushed}, wait=self._options.wait)

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

    def _refuse(self, operation: str) -> NoReturn:
        raise UnsupportedError(
            f"{operation} on table {self.table.name!r}: rows of a service of the role parameters change "
            "by pushes only; train on one rank with an update method, as "
            'sparring_torch.Optimizer(modules, "adagrad", lr=…)',
            table=self.table.name,
            operation=operation,
        )

    def _check_state(self) -> None:
        self._check_same_state(served_table(self.table, self._parameters, self._options))


def served_table(
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
