"""Writes the arguments and options of all commands to `docs/reference/command-line.md`.

    python docs/site/commands.py     writes the parts of the page between markers

Needs all packages with commands: sparring-cli, -packed, -plan, -serve and -train. The page contains one
pair of markers per command, and one pair for the list of commands. A new command needs a new section.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import typer

from sparring import PluginManager, make_plugin_manager
from sparring_cli.application import make_application

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/command-line.md"
END = "<!-- end -->"
LIST = re.compile(rf"(<!-- commands -->\n).*?{END}", re.S)
PART = re.compile(rf"(<!-- options: ([a-z -]+) -->\n).*?{END}", re.S)
WIDTH = 100
"""Maximum width of a line of a synopsis."""
VALUES = {int: "N", float: "X", str: "TEXT", Path: "PATH"}
"""Type of an option → name of its value, for options without a metavar."""

DESCRIBED_ONCE = ("--json", "DOTTED.KEY=VALUE")
"""Parameters of many commands that the page describes above all commands."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument or an option of a command, as a reader of the page sees it."""

    names: tuple[str, ...]
    """Names of an option, such as ``--output`` and ``-o``; empty for an argument."""
    value: str
    """Name of the value; empty for an option without a value."""
    is_list: bool
    is_required: bool
    default: str
    description: str

    @property
    def synopsis(self) -> str:
        dots = "..." if self.is_list else ""
        if self.names:
            shown = f"{self.names[0]} {self.value}".rstrip()
            return (shown if self.is_required else f"[{shown}]") + dots
        # The metavar of some arguments already contains brackets and dots.
        if "[" in self.value:
            return self.value
        return (self.value if self.is_required else f"[{self.value}]") + dots

    @property
    def is_described_once(self) -> bool:
        # `publish` prints several documents with --watch.
        return (self.names or (self.value,))[
            0
        ] in DESCRIBED_ONCE and "--watch" not in self.description

    @property
    def row(self) -> str:
        shown = f"{', '.join(self.names)} {self.value}".strip()
        default = "required" if self.is_required else self.default and f"`{self.default}`"
        repeated = " Can be repeated." if self.names and self.is_list else ""
        cells = (f"`{shown}`", default, self.description + repeated)
        return f"| {' | '.join(_escaped(each) for each in cells)} |\n"


def render_page(page: str, plugin_manager: PluginManager) -> str:
    """Returns the text of the page with the current commands between its markers."""
    commands = dict(find_commands(plugin_manager))
    described = [name for _, name in PART.findall(page)]
    assert sorted(described) == sorted(commands), (
        f"{PAGE.relative_to(ROOT)} has markers for {sorted(described)}, expected {sorted(commands)}: "
        "add or remove the sections of commands"
    )
    packages = {
        each.name: each.distribution
        for each in plugin_manager.descriptors()
        if each.kind == "commands"
    }
    rows = "| command | package | effect |\n|---|---|---|\n"
    for name in described:
        if name != "sparring":
            summary = (inspect.getdoc(commands[name].callback) or "").split("\n\n")[0]
            package = packages[name.split()[1]]
            rows += (
                f"| [`{name}`](#{name.replace(' ', '-')}) | `{package}` | {_joined(summary)} |\n"
            )
    page = LIST.sub(lambda part: f"{part[1]}\n{rows}\n{END}", page)
    return PART.sub(lambda part: f"{part[1]}\n{render(part[2], commands)}\n{END}", page)


def find_commands(plugin_manager: PluginManager) -> Iterator[tuple[str, Any]]:
    """Yields the complete name of each command, and the command of typer; groups are not included."""
    group: Any = typer.main.get_command(make_application(plugin_manager))
    yield "sparring", group
    for name, command in group.commands.items():
        for below, each in getattr(command, "commands", {"": command}).items():
            yield f"sparring {name} {below}".strip(), each


def render(name: str, commands: dict[str, Any]) -> str:
    """Returns the summary, the synopsis, and the table of arguments and options of a command."""
    command = commands[name]
    function = inspect.unwrap(command.callback)
    parameters = list(find_parameters(command, function))
    pieces = [each.synopsis for each in parameters]
    text = ""
    if name == "sparring":
        pieces.append("COMMAND ...")
    else:
        text += "\n\n".join(map(_joined, (inspect.getdoc(function) or "").split("\n\n"))) + "\n\n"
    text += f"```text\n{_wrapped(name, pieces)}\n```\n"
    rows = [each.row for each in parameters if not each.is_described_once]
    if rows:
        text += "\n| argument or option | default | description |\n|---|---|---|\n"
        text += "".join(rows)
    return text


def find_parameters(command: Any, function: Callable[..., Any]) -> Iterator[Parameter]:
    """Yields the arguments, then the options of a command, in the order of its function.

    Types, limits and defaults are read from the function: how typer represents them has changed.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    defaults = inspect.signature(function).parameters
    for kind in ("argument", "option"):
        for each in command.params:
            if each.param_type_name != kind or each.name not in hints or each.hidden:
                continue
            given, info = typing.get_args(hints[each.name])
            value_type, is_list = _type_of(given)
            default = defaults[each.name].default
            value = info.metavar or _value_of(each.name, kind, value_type)
            description = _joined(info.help or "")
            assert description, f"{function.__name__}: {each.name} has no help text"
            yield Parameter(
                names=(*each.opts, *each.secondary_opts) if kind == "option" else (),
                value=value,
                is_list=is_list,
                is_required=default is inspect.Parameter.empty,
                default="" if default in (None, False, "") else str(default),
                description=f"{description}{_limits(info.min, info.max)}",
            )


def _type_of(given: Any) -> tuple[Any, bool]:
    """Returns the type of one value, and whether there may be several values."""
    if typing.get_origin(given) is Annotated:
        given = typing.get_args(given)[0]
    if typing.get_origin(given) in (Union, types.UnionType):
        (given,) = (each for each in typing.get_args(given) if each is not type(None))
    if typing.get_origin(given) is list:
        return typing.get_args(given)[0], True
    return given, False


def _value_of(name: str, kind: str, value_type: Any) -> str:
    if kind == "argument":
        return name.upper()
    if value_type is bool:
        return ""
    if typing.get_origin(value_type) is Literal:
        return "|".join(typing.get_args(value_type))
    return VALUES[value_type]


def _limits(smallest: float | None, largest: float | None) -> str:
    if smallest is None and largest is None:
        return ""
    if largest is None:
        return f" At least {smallest:,}."
    return f" At most {largest:,}." if smallest is None else f" From {smallest:,} to {largest:,}."


def _escaped(cell: str) -> str:
    return cell.replace("|", r"\|")


def _joined(text: str) -> str:
    return " ".join(text.split())


def _wrapped(name: str, pieces: list[str]) -> str:
    lines = [name]
    for each in pieces:
        if len(lines[-1]) + 1 + len(each) > WIDTH:
            lines.append("   ")
        lines[-1] += f" {each}"
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(render_page(PAGE.read_text(), make_plugin_manager()))
