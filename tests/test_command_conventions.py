"""All commands of `sparring` follow one convention: docs/reference/command-line.md describes it."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from sparring import make_plugin_manager
from sparring_cli.application import OTHER_COMMANDS
from sparring_cli.registration import GROUPS, list_examples

sys.path.insert(0, str(Path(__file__).parents[1] / "docs/site"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from command_lines import parse_command
from commands import Parameter, find_commands, find_parameters

MANAGER = make_plugin_manager()
COMMANDS: dict[str, Any] = dict(find_commands(MANAGER))
ROOT = COMMANDS.pop("sparring")

WITHOUT_JSON = {
    "sparring init": "its output is a document",
    "sparring config show": "its output is a document",
    "sparring config schema": "its output is a document",
    "sparring predict": "its output is a file of data",
    "sparring plan make": "its output is a document",
    "sparring plan report": "its output is a document",
    "sparring plan kubernetes": "its output is a document",
    "sparring plan slurm": "its output is a document",
    "sparring plan calibrate": "its output is a document",
    "sparring plan sketch": "its output is a document",
    "sparring serve": "it prints log messages until it is stopped",
}
"""Command → reason why it has no --json."""
CONVERSIONS = {"sparring export", "sparring convert"}
"""Commands with --to, the form that data are converted to."""
UNITS = re.compile(r"[Nn]umber of|[Ss]econds|[Bb]ytes|units of")
ORDER = ("SNAPSHOT", "TABLE", "KEY")


def parameters_of(name: str) -> list[Parameter]:
    return list(find_parameters(COMMANDS[name], COMMANDS[name].callback))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_examples_that_parse(name: str) -> None:
    examples = list_examples(COMMANDS[name].epilog)
    assert len(examples) >= 2
    assert len(set(examples)) == len(examples)
    for line in examples:
        program, *words = shlex.split(line)
        assert program == "sparring"
        assert parse_command(words).command_path == name, line


def test_every_command_is_in_a_group() -> None:
    for name, command in ROOT.commands.items():
        assert command.rich_help_panel in GROUPS, name


@pytest.mark.parametrize("name", COMMANDS)
def test_options_have_one_name_and_one_meaning(name: str) -> None:
    options = {names: each for each in parameters_of(name) for names in each.names}
    assert ("--json" in options) == (name not in WITHOUT_JSON)
    assert ("--to" in options) == (name in CONVERSIONS)
    assert ("--output" in options) == ("-o" in options)
    assert not {"--out", "--into", "--receipt", "--target"} & options.keys()
    for each in parameters_of(name):
        if each.value in ("N", "X"):
            assert UNITS.search(each.description), f"{each.names}: no unit in {each.description!r}"


@pytest.mark.parametrize("name", COMMANDS)
def test_arguments_are_in_the_order_snapshot_table_key(name: str) -> None:
    found = [each.value for each in parameters_of(name) if not each.names]
    ranks = [ORDER.index(each) for each in found if each in ORDER]
    assert ranks == sorted(ranks)
    # A table is looked for in something, so it is not first, except if an option says where.
    assert found[0] != "TABLE" or name == "sparring erase" if found else True


def test_commands_of_other_packages_are_known_without_them() -> None:
    found: dict[str, list[str]] = {}
    for each in MANAGER.descriptors():
        if each.kind == "commands" and each.distribution != "sparring-cli":
            found.setdefault(each.distribution.removeprefix("sparring-"), []).append(each.name)
    assert {extra: tuple(sorted(names)) for extra, names in found.items()} == OTHER_COMMANDS
