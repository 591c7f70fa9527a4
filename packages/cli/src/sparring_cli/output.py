"""Terminal output: tables and JSON to standard output, errors to standard error."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from sparring.errors import ConfigError

__all__ = ["make_console", "print_error", "print_json", "print_problems", "print_warning"]

_WIDTH_WITHOUT_TERMINAL = 160


def make_console(*, is_error: bool = False) -> Console:
    """Returns a console on standard output or standard error; it is wide if there is no terminal."""
    console = Console(stderr=is_error, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=is_error, highlight=False, width=_WIDTH_WITHOUT_TERMINAL)
    return console


def print_error(message: str) -> None:
    """Prints an error message to standard error."""
    text = Text("error: ", style="bold red").append(message, style="not bold default")
    make_console(is_error=True).print(text, soft_wrap=True)


def print_warning(message: str) -> None:
    """Prints a warning to standard error."""
    text = Text("warning: ", style="bold yellow").append(message, style="not bold default")
    make_console(is_error=True).print(text, soft_wrap=True)


def print_problems(error: ConfigError) -> None:
    """Prints all problems of a configuration to standard error, one line each."""
    lines = str(error).splitlines()
    console = make_console(is_error=True)
    for line in lines:
        place, colon, message = line.partition(": ")
        text = Text(place + colon, style="bold").append(message, style="not bold default")
        console.print(text, soft_wrap=True)
    problems = error.details["problems"]
    assert isinstance(problems, tuple)
    count = "1 error" if len(problems) == 1 else f"{len(problems):,} errors"
    console.print(Text(f"{count} in the configuration", style="bold red"), soft_wrap=True)


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Prints one line of JSON to standard output; non-finite numbers become null."""
    typer.echo(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
