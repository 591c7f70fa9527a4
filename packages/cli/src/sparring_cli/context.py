"""State that all commands of one call share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import typer

from sparring import PluginManager

__all__ = ["CommandContext", "get_command_context"]


@dataclass(slots=True)
class CommandContext:
    """Stored in ``typer.Context.obj`` of every command.

    Args:
        plugin_manager: finds the descriptors of all plugins.
        is_debugging: show where an error came from.
    """

    plugin_manager: PluginManager
    is_debugging: bool = False


def get_command_context(context: typer.Context) -> CommandContext:
    """The `CommandContext` of the call that `context` belongs to."""
    return cast(CommandContext, context.find_root().obj)
