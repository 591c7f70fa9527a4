"""The pages about storages match the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from sparring.contracts.storage.capabilities import Capabilities
from sparring.contracts.storage.storage import Storage
from sparring.storage.memory import MemoryOptions

ROOT = Path(__file__).parents[3]
TEMPLATE = ROOT / "packages/_template"
HOW_TO = (ROOT / "docs/how-to/write-a-backend.md").read_text()
REFERENCE = (ROOT / "docs/reference/storage.md").read_text()

_BLOCK = re.compile(
    r"<!-- not run: this is (?P<path>\S+) -->\n```\w+\n(?P<code>.*?)^```", re.M | re.S
)

_SOURCES = [
    "pyproject.toml",
    *sorted(str(p.relative_to(TEMPLATE)) for p in TEMPLATE.rglob("src/**/*.py")),
]


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _blocks(path: Path) -> str:
    return "".join(m["code"] for m in _BLOCK.finditer(HOW_TO) if ROOT / m["path"] == path)


@pytest.mark.parametrize("source", _SOURCES)
def test_walkthrough_shows_each_file_of_the_template_whole_and_in_order(source: str) -> None:
    assert _lines(_blocks(TEMPLATE / source)) == _lines((TEMPLATE / source).read_text())


def test_walkthrough_shows_the_proof_as_it_is() -> None:
    proof = TEMPLATE / "tests/test_conformance.py"
    shown = _lines(_blocks(proof))
    assert shown
    assert shown == _lines(proof.read_text())[: len(shown)]


def test_template_is_four_small_files() -> None:
    assert len(_SOURCES) == 4
    for source in _SOURCES:
        assert len((TEMPLATE / source).read_text().splitlines()) < 150, source
    assert sum(len(_lines((TEMPLATE / source).read_text())) for source in _SOURCES) < 150


def test_reference_has_every_capability_with_its_default() -> None:
    for field in fields(Capabilities):
        default = str(field.default).replace("'", '"')
        shown = f'"{default}"' if isinstance(field.default, str) else default
        assert f"| `{field.name}` | `{shown}` |" in REFERENCE


def test_reference_has_every_operation() -> None:
    operations = [name for name in vars(Storage) if not name.startswith("_")]
    for name in set(operations) - {"capabilities"}:
        assert re.search(rf"^\| .*`{name}[`(]", REFERENCE, re.M), f"{name} is missing"


def test_reference_has_every_option_of_memory() -> None:
    for name in MemoryOptions.model_fields:
        assert f"| `{name}` |" in REFERENCE
