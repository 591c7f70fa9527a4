"""Commands and storage of sparring-serve. Importing this module does not import gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparring.contracts import API_VERSION, CommandDescriptor, StorageDescriptor, hookimpl

if TYPE_CHECKING:
    import typer

    from sparring.contracts import Storage, TableConfig
    from sparring_serve.remote_options import RemoteOptions


@hookimpl
def sparring_register_commands() -> Sequence[CommandDescriptor]:
    return [
        CommandDescriptor(
            name="publish",
            group="Serve",
            api_version=API_VERSION,
            summary="Convert snapshots to serving snapshots.",
            register=_add_publish,
        ),
        CommandDescriptor(
            name="serve",
            group="Serve",
            api_version=API_VERSION,
            summary="Serve tables over gRPC.",
            register=_add_serve,
        ),
        CommandDescriptor(
            name="lookup",
            group="Serve",
            api_version=API_VERSION,
            summary="Look up rows in a running lookup service.",
            register=_add_lookup,
        ),
        CommandDescriptor(
            name="resize",
            group="Serve",
            api_version=API_VERSION,
            summary="Change the number of shards of a running parameter service.",
            register=_add_resize,
        ),
    ]


@hookimpl
def sparring_register_storage() -> Sequence[StorageDescriptor]:
    from sparring_serve.remote_options import RemoteOptions

    return [
        StorageDescriptor(
            name="remote",
            api_version=API_VERSION,
            summary="Rows of a lookup service. Only a service with the role `parameters` accepts "
            "updates.",
            options=RemoteOptions,
            factory=_open_remote,
            found=_found_remote,
        )
    ]


def _add_publish(app: typer.Typer) -> None:
    from sparring_serve.cli.publish import add_publish

    add_publish(app)


def _add_serve(app: typer.Typer) -> None:
    from sparring_serve.cli.serve import add_serve

    add_serve(app)


def _add_lookup(app: typer.Typer) -> None:
    from sparring_serve.cli.lookup import add_lookup

    add_lookup(app)


def _add_resize(app: typer.Typer) -> None:
    from sparring_serve.cli.resize import add_resize

    add_resize(app)


def _open_remote(table: TableConfig, options: RemoteOptions) -> Storage:
    if options.role == "parameters":
        from sparring_serve.parameters.storage import ParameterStorage

        return ParameterStorage(table, options)
    from sparring_serve.remote_storage import RemoteStorage

    return RemoteStorage(table, options)


def _found_remote(table: TableConfig, options: RemoteOptions) -> TableConfig | None:
    if options.role == "parameters":
        from sparring_serve.parameters.client import ParameterClient
        from sparring_serve.parameters.storage import find_served_table
        from sparring_serve.remote_storage import open_client

        with open_client(options, ParameterClient) as client:
            return find_served_table(table, client, options)
    # Served rows are only embeddings, without optimizer state.
    return table
