"""Terminal output: results to standard output; progress, notes, warnings and errors to standard error."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from sparring.errors import ConfigError, DataError

__all__ = [
    "VERBOSE_HANDLER",
    "console_output",
    "is_quiet",
    "make_console",
    "print_document",
    "print_error",
    "print_json",
    "print_note",
    "print_problems",
    "print_warning",
    "progress_bar",
    "set_verbosity",
]

_WIDTH_WITHOUT_TERMINAL = 160

VERBOSE_HANDLER = "sparring --verbose"
"""Name of the handler that prints log messages with ``--verbose``."""


@contextmanager
def console_output() -> Iterator[None]:
    """Restores the level and handlers of the root logger after a command."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        for each in set(root.handlers) - set(handlers):
            root.removeHandler(each)


def set_verbosity(level: str) -> None:
    """Sets the level of log messages: ``error`` for ``--quiet``, or ``debug`` for ``--verbose``."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    if level == "debug":
        handler = logging.StreamHandler()
        handler.set_name(VERBOSE_HANDLER)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        # Other libraries log details at this level that do not help users of sparring.
        handler.addFilter(
            lambda each: each.name.startswith("sparring") or each.levelno >= logging.WARNING
        )
        root.addHandler(handler)


def is_quiet() -> bool:
    """Returns whether to print only results and errors, because of ``--quiet``."""
    return logging.getLogger().level >= logging.ERROR


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


def print_note(message: str) -> None:
    """Prints a note to standard error, for example the file that was written; not with ``--quiet``."""
    if not is_quiet():
        typer.echo(message, err=True)


@contextmanager
def progress_bar(
    title: str, unit: str, total: int | None, *, as_json: bool
) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on standard error, if it is a terminal, without ``--json`` and ``--quiet``.

    Yields:
        A function that adds a number of units to the progress.
    """
    console = make_console(is_error=True)
    is_shown = console.is_terminal and not console.is_dumb_terminal
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} " + unit),
        TimeRemainingColumn(),
    )
    is_disabled = not is_shown or as_json or is_quiet()
    with Progress(*columns, console=console, transient=True, disable=is_disabled) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


def print_document(text: str, output: Path | None) -> None:
    """Writes a complete document to a file, or to standard output if `output` is None.

    Raises:
        DataError: The file cannot be written.
    """
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"writing {output} failed: {error.strerror or error}; choose another --output",
            path=str(output),
        ) from error


def print_warning(message: str) -> None:
    """Prints a warning to standard error; not with ``--quiet``."""
    if is_quiet():
        return
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
