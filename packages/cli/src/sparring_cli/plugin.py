"""Plugin of sparring-cli: commands that work on any installation. Importing it does not import typer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparring.contracts import API_VERSION, CommandDescriptor, hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def sparring_register_commands() -> Sequence[CommandDescriptor]:
    return [
        CommandDescriptor(
            name="plugins",
            group="Operate",
            api_version=API_VERSION,
            summary="List the registered and the rejected plugins.",
            register=_add_plugins,
        ),
        CommandDescriptor(
            name="convert",
            group="Snapshots",
            api_version=API_VERSION,
            summary="Convert the rows of a table to another update method.",
            register=_add_convert,
        ),
        CommandDescriptor(
            name="inspect",
            group="Snapshots",
            api_version=API_VERSION,
            summary="Show and verify snapshots, runs and serving snapshots.",
            register=_add_inspect,
        ),
        CommandDescriptor(
            name="export",
            group="Snapshots",
            api_version=API_VERSION,
            summary="Write the tables of a snapshot as files for other programs.",
            register=_add_export,
        ),
        CommandDescriptor(
            name="import",
            group="Snapshots",
            api_version=API_VERSION,
            summary="Convert a file of embeddings to a snapshot.",
            register=_add_import,
        ),
        CommandDescriptor(
            name="compact",
            group="Snapshots",
            api_version=API_VERSION,
            summary="Merge a chain of deltas into one full snapshot.",
            register=_add_compact,
        ),
        CommandDescriptor(
            name="diff",
            group="Snapshots",
            api_version=API_VERSION,
            summary="Compare the tables of two snapshots.",
            register=_add_diff,
        ),
        CommandDescriptor(
            name="top",
            group="Operate",
            api_version=API_VERSION,
            summary="Show a live view of the metrics of running processes.",
            register=_add_top,
        ),
        CommandDescriptor(
            name="doctor",
            group="Operate",
            api_version=API_VERSION,
            summary="Report on this installation and this machine.",
            register=_add_doctor,
        ),
    ]


def _add_plugins(app: typer.Typer) -> None:
    from sparring_cli.commands.plugins import add_plugins

    add_plugins(app)


def _add_convert(app: typer.Typer) -> None:
    from sparring_cli.commands.convert import add_convert

    add_convert(app)


def _add_doctor(app: typer.Typer) -> None:
    from sparring_cli.commands.doctor import add_doctor

    add_doctor(app)


def _add_top(app: typer.Typer) -> None:
    from sparring_cli.commands.top import add_top

    add_top(app)


def _add_inspect(app: typer.Typer) -> None:
    from sparring_cli.commands.inspect import add_inspect

    add_inspect(app)


def _add_diff(app: typer.Typer) -> None:
    from sparring_cli.commands.diff import add_diff

    add_diff(app)


def _add_export(app: typer.Typer) -> None:
    from sparring_cli.commands.snapshots import add_export

    add_export(app)


def _add_import(app: typer.Typer) -> None:
    from sparring_cli.commands.snapshots import add_import

    add_import(app)


def _add_compact(app: typer.Typer) -> None:
    from sparring_cli.commands.snapshots import add_compact

    add_compact(app)
