"""Plugin modules import quickly, because every program imports them."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

import pytest

# Subpackages count, too.
MOST_MODULES = 30
HEAVY = {
    "keras",
    "prometheus_client",
    "redis",
    "rich",
    "ruamel.yaml",
    "tensorflow",
    "torch",
    "typer",
}

# Like the template of backends, with types at the top of the module.
STRANGER = "from sparring.contracts import Storage, StorageDescriptor, TableConfig, hookimpl"

PLUGINS = sorted({each.module for each in metadata.entry_points(group="sparring")})
PROGRAMS = [
    "import sparring.contracts",
    STRANGER,
    *(f"import sparring.contracts, {each}" for each in PLUGINS),
]


# Each program runs in a child of one process, which has imported what all of them import, and numpy.
REPORT = """
import json, os, sys
import numpy, sparring.contracts
for program in json.loads(sys.argv[1]):
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, program
    else:
        exec(program)
        print(json.dumps([program, sorted(sys.modules)]), flush=True)
        os._exit(0)
"""


@pytest.fixture(scope="module")
def modules_after() -> dict[str, set[str]]:
    """The modules that a new process has imported after each program."""
    command = [sys.executable, "-c", REPORT, json.dumps(PROGRAMS)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    return {program: set(modules) for program, modules in lines}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_plugin_module_loads_few_modules_and_no_native_library(
    program: str, modules_after: dict[str, set[str]]
) -> None:
    loaded = modules_after[program]
    ours = {each for each in loaded if each.partition(".")[0].partition("_")[0] == "sparring"}
    assert len(ours) <= MOST_MODULES, sorted(ours)
    native = {each for each in ours if each.rpartition(".")[2] in ("_native", "_cuda", "_emulated")}
    assert native == set()
    assert loaded & HEAVY == set()
