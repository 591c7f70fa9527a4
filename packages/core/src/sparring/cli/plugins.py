"""``sparring plugins``: what plugins offer, and which were refused and why."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparring.cli.context import context_of
from sparring.cli.output import make_console, print_json
from sparring.plugins import PluginManager

__all__ = ["add_plugins", "plugins_as_json", "print_plugins"]


def add_plugins(application: typer.Typer) -> None:
    application.command("plugins")(plugins)


def plugins(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """List what core and plugins offer, and which plugins were refused and why."""
    manager = context_of(context).plugin_manager
    if json:
        print_json(plugins_as_json(manager))
    else:
        print_plugins(make_console(), manager)


def plugins_as_json(manager: PluginManager) -> dict[str, Any]:
    return {
        "offered": [
            {
                "kind": offer.kind,
                "name": offer.name,
                "distribution": offer.distribution,
                "version": offer.version,
                "summary": offer.descriptor.summary,
                "options": sorted(offer.descriptor.options.model_fields),
            }
            for offer in manager.descriptors()
        ],
        "refused": [
            {
                "plugin": refusal.plugin,
                "distribution": refusal.distribution,
                "version": refusal.version,
                "reason": refusal.reason,
            }
            for refusal in manager.refusals()
        ],
        "conflicts": [
            {
                "kind": conflict.kind,
                "name": conflict.name,
                "distributions": [offer.distribution for offer in conflict.offers],
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
    for offer in manager.descriptors():
        summary = Text(offer.descriptor.summary)
        options = ", ".join(offer.descriptor.options.model_fields)
        if options:
            summary.append(f" Options: {options}.", style="dim")
        table.add_row(
            offer.kind if offer.kind != kind else "",
            Text(offer.name, style="green"),
            f"{offer.distribution} {offer.version}",
            summary,
        )
        kind = offer.kind
    console.print(table)
    for conflict in manager.conflicts():
        console.print(Text("conflict: ", style="bold yellow").append(conflict.reason, "default"))
    for refusal in manager.refusals():
        who = f"{refusal.plugin} of {refusal.distribution} {refusal.version}: "
        console.print(
            Text("refused: ", style="bold red")
            .append(who, style="not bold default")
            .append(refusal.reason, style="not bold default")
        )
    if not manager.refusals() and not manager.conflicts():
        console.print(Text("No plugin was refused.", style="dim"))
