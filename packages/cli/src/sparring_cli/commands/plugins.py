"""``sparring plugins``: lists registered descriptors, and rejected plugins with their reasons."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparring import PluginManager
from sparring_cli.context import get_command_context
from sparring_cli.output import make_console, print_json
from sparring_cli.registration import JsonOption, add_command

__all__ = ["add_plugins", "plugins_as_json", "print_plugins"]


def add_plugins(application: typer.Typer) -> None:
    add_command(
        application,
        "plugins",
        plugins,
        examples=["sparring plugins", "sparring plugins --json"],
    )


def plugins(
    context: typer.Context,
    as_json: JsonOption = False,
) -> None:
    """List the descriptors of core and plugins, and rejected plugins with their reasons."""
    manager = get_command_context(context).plugin_manager
    if as_json:
        print_json(plugins_as_json(manager))
    else:
        print_plugins(make_console(), manager)


def plugins_as_json(manager: PluginManager) -> dict[str, Any]:
    return {
        "registered": [
            {
                "kind": each.kind,
                "name": each.name,
                "distribution": each.distribution,
                "version": each.version,
                "summary": each.descriptor.summary,
                "options": sorted(each.descriptor.options.model_fields),
            }
            for each in manager.descriptors()
        ],
        "rejected": [
            {
                "plugin": failed.plugin,
                "distribution": failed.distribution,
                "version": failed.version,
                "reason": failed.reason,
            }
            for failed in manager.load_errors()
        ],
        "conflicts": [
            {
                "kind": conflict.kind,
                "name": conflict.name,
                "distributions": [each.distribution for each in conflict.registered],
                "reason": conflict.reason,
            }
            for conflict in manager.conflicts()
        ],
    }


def print_plugins(console: Console, manager: PluginManager) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("kind", "name", "brought by"):
        table.add_column(column, no_wrap=True)
    table.add_column("what it is")
    kind = ""
    for each in manager.descriptors():
        summary = Text(each.descriptor.summary)
        options = ", ".join(each.descriptor.options.model_fields)
        if options:
            summary.append(f" Options: {options}.", style="dim")
        table.add_row(
            each.kind if each.kind != kind else "",
            Text(each.name, style="green"),
            f"{each.distribution} {each.version}",
            summary,
        )
        kind = each.kind
    console.print(table)
    for conflict in manager.conflicts():
        console.print(Text("conflict: ", style="bold yellow").append(conflict.reason, "default"))
    for failed in manager.load_errors():
        who = f"{failed.plugin} of {failed.distribution} {failed.version}: "
        console.print(
            Text("rejected: ", style="bold red")
            .append(who, style="not bold default")
            .append(failed.reason, style="not bold default")
        )
    if not manager.load_errors() and not manager.conflicts():
        console.print(Text("No plugin was rejected.", style="dim"))
