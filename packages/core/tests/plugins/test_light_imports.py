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


def modules_after(program: str) -> set[str]:
    """Returns the modules that a new process has imported after `program`."""
    told = f"{program}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_plugin_module_loads_few_modules_and_no_native_library(program: str) -> None:
    loaded = modules_after(program)
    ours = {each for each in loaded if each.partition(".")[0].partition("_")[0] == "sparring"}
    assert len(ours) <= MOST_MODULES, sorted(ours)
    native = {each for each in ours if each.rpartition(".")[2] in ("_native", "_cuda", "_emulated")}
    assert native == set()
    assert loaded & HEAVY == set()
