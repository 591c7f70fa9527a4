"""Help, version and completion import no command and none of their libraries."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from sparring_cli.application import main
code = main(sys.argv[1:])
heavy = {"numpy", "pyarrow", "torch", "grpc", "sparring_train.config", "sparring_serve.config"}
print("imported:", sorted(heavy & sys.modules.keys()), len(sys.modules))
sys.exit(code)
"""
# Plugins of this repository that show how a third party writes one.
OTHERS = {"SPARRING_PLUGINS_DISABLE": "jsonl,sqlite,tcp"}
COMPLETION = {"_SPARRING_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "sparring "}


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (["--help"], {}, "Report on this installation"),
        ([], COMPLETION, "doctor"),
        ([], {**COMPLETION, "_TYPER_COMPLETE_ARGS": "sparring pu"}, "publish"),
        (["--version"], {}, "sparring "),
    ],
    ids=["help", "completion", "started word", "version"],
)
def test_the_start_imports_no_library(
    arguments: list[str], environment: dict[str, str], expected: str
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **OTHERS, **environment},
        check=True,
    )
    assert expected in run.stdout
    found = run.stdout[run.stdout.index("imported:") :].split()
    assert found[1] == "[]"
    assert int(found[2]) < 700


def test_a_completed_option_is_that_of_its_command() -> None:
    line = {**COMPLETION, "_TYPER_COMPLETE_ARGS": "sparring doctor --"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        env={**os.environ, **line},
        check=True,
    )
    assert "--json" in run.stdout
