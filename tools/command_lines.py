"""Parses command lines of `sparring` without running them, for tests of documents and examples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from sparring import make_plugin_manager

__all__ = ["parse_command"]


@cache
def _application() -> tuple[Any, Any]:
    import typer.main

    from sparring_cli import CommandContext
    from sparring_cli.application import make_application

    manager = make_plugin_manager()
    return typer.main.get_command(make_application(manager)), CommandContext(manager)


def parse_command(words: Sequence[str]) -> Any:
    """Parses the words after `sparring` with the real parsers of the installed commands.

    Args:
        words: for example ``["train", "run.yaml", "--json"]``.

    Returns:
        The context of the command that would run, with its ``command_path`` and ``params``.

    Raises:
        click.ClickException: a command, an option or an argument is wrong.
        typer.Exit: the words contain ``--help`` or ``--version``.
        AssertionError: a command would read an unknown option as an argument.
    """
    command, value = _application()
    context, name, rest, known = None, "sparring", list(words), set()
    while True:
        known |= {option for each in command.params for option in each.opts}
        context = command.make_context(name, list(rest), parent=context, obj=value)
        if not hasattr(command, "resolve_command"):
            break
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
    # Commands that accept negative numbers read any word that starts with a hyphen.
    options = {word.split("=")[0] for word in words if re.match("-[-a-z]", word)}
    assert options <= known, f"no such option: {', '.join(sorted(options - known))}"
    return context
