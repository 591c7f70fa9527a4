"""Tests that the page on architecture lists existing files, and all of a step, a save and a load."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/explanation/architecture.md").read_text()
CORE = "core/src/sparring/"
MAX_FILES = {"save": 19, "load": 19}
"""Maximum number of files in a walk, so that it stays possible to follow one."""


def test_each_file_named_on_the_page_exists() -> None:
    named = re.findall(r"\]\(\.\./\.\./(packages/[^)#]+)\)", PAGE)
    assert len(named) > 20
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_each_part_of_core_is_on_the_page() -> None:
    rooms = {each.parent.name for each in (ROOT / "packages" / CORE).glob("*/__init__.py")}
    assert {each for each in rooms if f"| `{each}` |" not in PAGE} == set()


def test_each_package_is_on_the_page() -> None:
    packages = {each.parent.name for each in ROOT.glob("packages/*/pyproject.toml")}
    assert {each for each in packages if f"](../../packages/{each})" not in PAGE} == set()


WALKS = ("batch", "save", "load")


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[tuple[str, str]]]:
    """The part and the path of each file of each walk, in order."""
    for needed in ("torch", "sparring_hkv", "sparring_torch"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"one training step needs {needed}, which is not installed here")
    program = (
        "import json, walks\n"
        f"files = {{walk: walks.files_of(walk) for walk in {WALKS}}}\n"
        "parts = {walk: [(walks.part_of(file), str(file)) for file in files[walk]] for walk in files}\n"
        "print(json.dumps(parts))"
    )
    # A separate process, because the recorder must observe each thread from its start.
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "docs/site",
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found: dict[str, list[tuple[str, str]]] = json.loads(ran.stdout)
    return found


@pytest.mark.slow  # starts a process with PyTorch
@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_runs_through_no_file_of_core_that_is_not_listed(
    walk: str, recorded: dict[str, list[tuple[str, str]]]
) -> None:
    found = recorded[walk]
    section = PAGE.split(f"<!-- walk: {walk} -->")[1].split("<!-- end -->")[0]
    in_core = [file for _, file in found if file.startswith(CORE)]
    unlisted = [each for each in in_core if f"](../../packages/{each})" not in section]
    assert in_core
    assert unlisted == [], "to make the lists again: python docs/site/walks.py --write"
    path = [file for part, file in found if part == "path"]
    assert len(path) <= MAX_FILES.get(walk, len(path))
