"""Tests that shell blocks of the documentation name existing commands, options, keys and files.

Blocks that copy a template are also run. Commands of `sparring` are parsed, not run: tests of commands
and configurations do that.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from sparring_serve.config import read_serving_config
from sparring_train.cli.init.words import parse_words
from sparring_train.config.reading.loader import load_config
from sparring_train.data.table.files import is_name_of_table

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from command_lines import parse_command
from source_index import projects

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


def check_sparring(arguments: list[str]) -> None:
    with suppress(typer.Exit):  # --help and --version
        context = parse_command(arguments)
        if context.info_name in ("train", "serve"):
            given = context.params
            check_keys(context.info_name, Path(given["config"]), given["overrides"] or [])


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


SESSIONS = "".join(
    path.read_text() for path in (ROOT / "noxfile.py", *(ROOT / "sessions").glob("*.py"))
)
# The module needs nox, so it is parsed.
EXTRAS_OF_NOX = set(eval(re.findall(r"^EXTRAS = (\{\n.*?^\})", SESSIONS, re.M | re.S)[0]))


def check_nox(arguments: list[str]) -> None:
    option, session, *rest = arguments
    assert option == "-s"
    assert f"\ndef {session}(session: nox.Session)" in SESSIONS, f"nox has no session {session}"
    if session == "install":
        separator, folder, *extras = rest
        assert (separator, folder[0]) == ("--", "~")
        assert set(extras) <= EXTRAS_OF_NOX, extras


def check_pip(arguments: list[str]) -> None:
    """Checks that the extras of our packages exist."""
    assert arguments[0] == "install"
    for word in arguments[1:]:
        match = re.fullmatch(r"(sparring[a-z-]*)(?:\[([a-z0-9,]+)\])?", word)
        if match:
            extras = projects()[match[1]].extras
            assert set((match[2] or "").split(",")) <= {"", *extras}, word


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
    assert extras >= projects()["sparring"].extras.keys() >= EXTRAS_OF_NOX
