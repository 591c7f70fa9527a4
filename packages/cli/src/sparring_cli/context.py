"""State that is shared by all commands of one invocation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import typer

from sparring import PluginManager

__all__ = ["CommandContext", "get_command_context"]


@dataclass(slots=True)
class CommandContext:
    """Stored in ``typer.Context.obj`` of each command.

    Args:
        plugin_manager: Finds the descriptors of all plugins.
        is_debugging: Whether to show tracebacks of errors.
        log_level: Level that replaces the level of a command or its configuration: ``error`` with
            ``--quiet``, ``debug`` with ``--verbose``.
    """

    plugin_manager: PluginManager
    is_debugging: bool = False
    log_level: str | None = None


def get_command_context(context: typer.Context) -> CommandContext:
    """Returns the `CommandContext` of the invocation of `context`."""
    return cast(CommandContext, context.find_root().obj)
