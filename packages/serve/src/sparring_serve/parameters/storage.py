"""The storage `remote` with the role `parameters`: lookups pull rows, training steps push gradients."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from sparring import StepContainer
from sparring.adapter import initial_rows, resolve_method
from sparring.contracts import Columns, Keys, MethodChoice, Rows, TableConfig
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_serve.client.fallback import read_initial_values
from sparring_serve.config import read_serving_config
from sparring_serve.parameters.client import ParameterClient
from sparring_serve.parameters.push_steps import TablePush, save_seconds
from sparring_serve.remote_options import RemoteOptions
from sparring_serve.remote_storage import RemoteStorage, open_client

__all__ = ["ParameterStorage", "find_served_table"]

_SOME_KEYS = np.arange(4)


class ParameterStorage(RemoteStorage):
    """Rows of a service with trainable tables. The service keeps the optimizer state, which is not
    read.

    The service determines the initial values of keys without a row. The declaration here must have the
    same initializer, or the default one; its seed is not used.

    Args:
        table: Declaration with the dim of the served table and the state of its update method.
        options: Location of the service.
        client: Client of the service; None creates one from `options`.

    Raises:
        InvalidArgumentError, UnknownTableError, StorageIOError: As in `RemoteStorage`.
    """

    def __init__(
        self, table: TableConfig, options: RemoteOptions, client: ParameterClient | None = None
    ) -> None:
        self.rows_dtype = table.dtype
        self._parameters = client or open_client(options, ParameterClient)
        super().__init__(table, options, self._parameters)

    def push(self, keys: Keys, gradients: Rows, choice: MethodChoice) -> None:
        """See `SupportsPush.push`. The service counts the steps."""
        pushed = TablePush(keys, gradients, choice.method.name, choice.hyper.model_dump())
        self._parameters.push({self.table.name: pushed}, wait=self._options.wait)

    def replace_all(self, embeddings: Mapping[str, Rows]) -> None:
        """Writes a snapshot that the service then loads; see `SupportsReplaceAll.replace_all`.

        This process writes it to the first of `parameters.folders`.

        Raises:
            UnsupportedError: The options have no `config`, so the folder is unknown.
            InvalidArgumentError: A table is missing, is not part of the service, or has a different dim.
            SnapshotError: The service could not load it.
        """
        if self._options.config is None:
            raise UnsupportedError(
                f"replace all rows of table {self.table.name!r}: this needs the folder of the service's "
                "snapshots from its configuration; set config=… instead of target"
            )
        config = read_serving_config(self._options.config).parameters
        declared = {} if config is None else config.tables
        if declared.keys() != embeddings.keys():
            raise InvalidArgumentError(
                f"replace all rows: found the tables {', '.join(sorted(embeddings))}, but the service "
                f"has {', '.join(sorted(declared))}; declare the same tables in parameters.tables"
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
                f"find on table {table.name!r}: a service returns only embeddings and keeps the "
                "optimizer state; train with an update method, which the service applies: "
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
        # Only a flush reports failures of queued pushes.
        self._parameters.flush()

    def _refuse(self, operation: str) -> NoReturn:
        raise UnsupportedError(
            f"{operation} on table {self.table.name!r}: rows of a service of the role parameters change "
            "only by pushes; train on one rank with an update method, for example "
            'sparring_torch.Optimizer(modules, "adagrad", lr=…)',
            table=self.table.name,
            operation=operation,
        )

    def _check_dtype(self, served: str) -> None:
        table = self.table
        self.rows_dtype = served
        if table.dtype == "int8":
            raise InvalidArgumentError(
                f"table {table.name!r}: a service returns no rows of int8, and the table is declared as "
                "int8; declare it as float32 for the storage `remote`; the service can store int8",
                table=table.name,
            )
        if table.dtype not in ("float32", served):
            raise InvalidArgumentError(
                f"table {table.name!r} is declared as {table.dtype}, but the service stores {served}; "
                f"declare `dtype: {table.dtype}` in parameters.tables, or {served} here",
                table=table.name,
            )

    def _check_state(self) -> None:
        self._check_same_state(find_served_table(self.table, self._parameters, self._options))
        self._check_initial_values()

    def _check_initial_values(self) -> None:
        table = self.table
        if table.initializer == TableConfig(table.name, table.dim).initializer:
            return
        described = self._client.describe(deadline_seconds=self._options.deadline_seconds)
        for each in next(iter(described.shards.values())).tables:
            if each.name != table.name or not each.initial.kind:
                continue  # older servers do not describe initial values
            served = read_initial_values(each)
            declared, stored = (
                # The service may store another dtype, and runs give their seed to each table.
                TableConfig(table.name, table.dim, initializer=one.initializer, seed=served.seed)
                for one in (table, served)
            )
            mine, theirs = (initial_rows(_SOME_KEYS, each) for each in (declared, stored))
            if not np.allclose(mine, theirs, rtol=1e-5):
                raise InvalidArgumentError(
                    f"table {table.name!r}: the service determines initial values, found initializer "
                    f"{table.initializer!r} in the module, expected the initializer "
                    f"{served.initializer!r} of the service; leave it out in the module, and set it in "
                    "parameters.tables of the service",
                    table=table.name,
                )


def find_served_table(
    table: TableConfig, client: ParameterClient, options: RemoteOptions
) -> TableConfig:
    """Returns the declaration with the optimizer state that the service stores."""
    described = client.describe(deadline_seconds=options.deadline_seconds)
    save_seconds(described)  # raises an error for servers of another role
    answer = next(iter(described.shards.values()))
    for each in answer.parameters.tables:
        if each.table == table.name:
            method = resolve_method(each.update_method)
            return table.with_state(method.state_width(table.dim), method.name)
    return table
