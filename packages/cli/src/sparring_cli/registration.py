"""Registration of commands: their group in ``sparring --help``, their examples, and shared options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

__all__ = ["GROUPS", "JsonOption", "VerifyOption", "add_command", "list_examples"]

GROUPS = ("Start", "Train", "Use a trained model", "Snapshots", "Plan", "Serve", "Operate")
"""Groups of commands in ``sparring --help``, in their order there; see `CommandDescriptor`."""

JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document."),
]
VerifyOption = Annotated[
    bool, typer.Option("--verify", help="Read all files and check every hash.")
]

_TITLE = "Examples:"


def add_command(
    application: typer.Typer,
    name: str,
    function: Callable[..., Any],
    *,
    examples: Sequence[str],
    accepts_negative_numbers: bool = False,
) -> None:
    """Adds a command to the application, or to a group of commands.

    Args:
        application: The application or group.
        name: Name of the command.
        function: Function whose parameters are the arguments and options.
        examples: Complete command lines for the end of ``--help``.
        accepts_negative_numbers: Whether arguments such as -1 are ids and not options.
    """
    settings = {"ignore_unknown_options": True} if accepts_negative_numbers else None
    application.command(
        name,
        # Typer prints each paragraph on a separate line.
        epilog="\n\n".join([_TITLE, *examples]),
        context_settings=settings,
    )(function)


def list_examples(epilog: str | None) -> list[str]:
    """Returns the examples at the end of the help of a command."""
    title, *examples = (epilog or "").split("\n\n")
    return examples if title == _TITLE else []
