"""Tests that shell blocks of the documentation name existing commands, options, keys and files.

Blocks that copy a template are also run. Commands of `sparring` are parsed, not run: tests of commands
and configurations do that.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from sparring.plugins.registry import make_plugin_manager
from sparring_cli.application import make_application
from sparring_serve.config import read_serving_config
from sparring_train.cli.init_words import parse_words
from sparring_train.config.reading.loader import load_config
from sparring_train.data.table.files import is_name_of_table

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "packages/*/README.md")
BLOCK = re.compile(r"^```(?:sh|bash|console|shell)\n(.*?)^```", re.M | re.S)
FOLDERS = ("benchmarks", "configs", "docs", "packages", "tests", "tools")

# Programs whose arguments are only searched for files of the repository, by the reason.
OTHER_PROGRAMS = {
    "are part of the shell": "cd . echo export cp mv grep xargs sed",
    "change the machine": "git sudo",
    "build programs, which other tests do": "cmake ctest",
    "need a cluster; tests/test_kubernetes.py checks the files": "docker kubectl",
    "need Slurm; packages/plan/tests/test_slurm.py runs a job": "sbatch",
    "need a service": "curl grpcurl",
}


def blocks() -> list[Any]:
    found = []
    for path in sorted(path for pattern in PAGES for path in ROOT.glob(pattern)):
        text = path.read_text()
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start()) + 1
            name = f"{path.relative_to(ROOT)}:{line}"
            found.append(pytest.param(block[1], id=name))
    return found


def commands_in(code: str) -> list[list[str]]:
    """Splits a block into commands, without prompts, comments, redirections and placeholders."""
    commands = []
    for line in code.replace("\\\n", " ").splitlines():
        text = re.sub(r"<[a-z ]+>", "placeholder", line.removeprefix("$ "))
        lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word in ("&&", ";", "|", "&"):
                if words:
                    commands.append(words)
                words = []
            else:
                words.append(word)
    return [remove_redirections(words) for words in commands]


def remove_redirections(words: list[str]) -> list[str]:
    return [
        word
        for before, word in zip(["", *words], words, strict=False)
        if not {before, word} & {">", "<", ">>"}
    ]


@cache
def application() -> Any:
    return typer.main.get_command(make_application(make_plugin_manager()))


def check_sparring(arguments: list[str]) -> None:
    """Parses arguments with the real parser, without running the command."""
    command, context = application(), None
    name = "sparring"
    try:
        while True:
            context = command.make_context(name, list(arguments), parent=context)
            if not hasattr(command, "resolve_command"):
                break
            rest = [*context._protected_args, *context.args]
            name, command, arguments = command.resolve_command(context, rest)
    except typer.Exit:  # --help and --version
        return
    if name == "lookup":  # accepts negative ids, which look like options
        assert not [each for each in context.params["ids"] if each.startswith("--")]
    if name in ("train", "serve"):
        check_keys(name, Path(context.params["config"]), context.params["overrides"] or [])


def check_keys(command: str, config: Path, overrides: list[str]) -> None:
    """Checks overrides with the named file, or with a typical file if it is a file of the reader."""
    if command == "train" and is_name_of_table(config.name):
        parse_words(overrides)
        return
    typical = {"train": "movielens.yaml", "serve": "serving.yaml"}
    file = ROOT / "configs" / (config.name if config.parts[0] == "configs" else typical[command])
    {"train": load_config, "serve": read_serving_config}[command](file, overrides)


def check_python(arguments: list[str]) -> None:
    first, *rest = arguments
    if first == "-m":
        module, *rest = rest
        file = ROOT / module.replace(".", "/")
        assert find_spec(module.split(".")[0]) or file.is_dir() or file.with_suffix(".py").is_file()
        {"sparring": check_sparring, "pip": check_pip}.get(module, lambda _: None)(rest)
    elif first != "-c" and "/" in first:
        assert (ROOT / first).is_file(), f"{first} is missing"


def check_torchrun(arguments: list[str]) -> None:
    parser = pytest.importorskip("torch.distributed.run").get_args_parser()
    given = parser.parse_args(arguments)
    check_python(
        [*(["-m"] if given.module else []), given.training_script, *given.training_script_args]
    )


def check_mpiexec(arguments: list[str]) -> None:
    option, number, *command = arguments
    assert (option, number.isdigit()) == ("-n", True)
    check(command)


def check_nox(arguments: list[str]) -> None:
    option, session, *rest = arguments
    assert option == "-s"
    assert session in definitions(), f"nox has no session {session}"
    if session == "install":
        separator, folder, *extras = rest
        assert (separator, folder[0]) == ("--", "~")
        assert set(extras) <= extras_of_nox(), extras


@cache
def definitions() -> dict[str, Any]:
    """Returns the functions and constants of the noxfile and its modules, which need nox."""
    found: dict[str, Any] = {}
    for path in (ROOT / "noxfile.py", *(ROOT / "sessions").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id] = node
    return found


def extras_of_nox() -> set[str]:
    """Returns the names that `nox -s install` accepts."""
    return set(eval(ast.unparse(definitions()["EXTRAS"].value)))


def check_pip(arguments: list[str]) -> None:
    """Checks that the extras of our packages exist."""
    assert arguments[0] == "install"
    for word in arguments[1:]:
        match = re.fullmatch(r"(sparring[a-z-]*)(?:\[([a-z0-9,]+)\])?", word)
        if match:
            extras = our_packages()[match[1]]
            assert set((match[2] or "").split(",")) <= {"", *extras}, word


@cache
def our_packages() -> dict[str, set[str]]:
    """Returns the extras of each of our packages, by its name."""
    found = {}
    for path in ROOT.glob("packages/*/pyproject.toml"):
        text = path.read_text()
        name = re.search(r'^name = "(.*)"', text, re.M)
        section = re.search(
            r"^\[project.optional-dependencies\]\n(.*?)(?:^\[|\Z)", text, re.M | re.S
        )
        assert name is not None
        extras = re.findall(r"^([a-z0-9]+) = ", section[1] if section else "", re.M)
        found[name[1]] = set(extras)
    return found


def check_all(code: str) -> None:
    for words in commands_in(code):
        check(words)


def check(words: list[str]) -> None:
    program, *arguments = words
    for word in words:
        path = word.removeprefix("./")
        if path.startswith(tuple(f"{each}/" for each in FOLDERS)):
            assert (ROOT / path).exists(), f"{path} is missing"
    if program in CHECKS:
        CHECKS[program](arguments)
    else:
        others = " ".join(OTHER_PROGRAMS.values()).split()
        assert program in others, f"{program} is not checked: add a check, or mark the block"


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "sparring": check_sparring,
    "python": check_python,
    "python3": check_python,
    "torchrun": check_torchrun,
    "mpiexec": check_mpiexec,
    "srun": check,
    "nox": check_nox,
    "pip": check_pip,
    "pytest": lambda _: None,
    "node": check_python,
}


@pytest.mark.parametrize("code", blocks())
def test_commands_of_a_block_exist(code: str, tmp_path: Path) -> None:
    check_all(code)
    if code.startswith("cp "):
        (tmp_path / "packages").symlink_to(ROOT / "packages")
        subprocess.run(["bash", "-euo", "pipefail", "-c", code], cwd=tmp_path, check=True)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("sparring lookup localhost:7433 item 7 --missed zero", "--missed"),
        ("sparring publish runs", "Missing"),
        ("sparring plan mak inputs.yaml", "No such command"),
        ("$ torchrun --nproc-per-node 4 -m sparring train run.yaml trainin.epochs=3", "trainin"),
        ("sparring train configs/quickstart.yaml data.path=x", "path"),
        ("sparring serve my.yaml server.pins=3", "pins"),
        ("cd a && kubectl apply -f configs/kubernetes/nothing.yaml", "is missing"),
        ("nox -s instal", "no session instal"),
        ("nox -s install -- ~/venv hk", "hk"),
        ('pip install "sparring[parket]"', "parket"),
        ("spark-submit x", "spark-submit is not checked"),
    ],
)
def test_a_wrong_command_fails(code: str, why: str) -> None:
    with pytest.raises((Exception, SystemExit), match=why):
        check_all(code)


def test_the_page_on_installing_lists_all_extras() -> None:
    page = (ROOT / "docs/how-to/install.md").read_text()
    listed = re.findall(r"^\| ((?:`[a-z]+`(?:, )?)+) \| ", page, re.M)
    extras = {name for names in listed for name in re.findall(r"`([a-z]+)`", names)}
    assert extras >= our_packages()["sparring"] >= extras_of_nox()
