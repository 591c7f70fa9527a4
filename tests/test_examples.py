"""Tests that the index of examples lists every configuration and every example program."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
INDEX = ROOT / "docs/examples.md"


def test_the_index_lists_every_configuration_example_and_template() -> None:
    links = re.findall(r"\]\((\.\./[^)#]+)", INDEX.read_text())
    listed = {(INDEX.parent / link).resolve() for link in links}
    patterns = ("configs/**/*.yaml", "packages/*/examples/*.*", "packages/_template*")
    expected = {path for pattern in patterns for path in ROOT.glob(pattern)}
    assert len(expected) > 40
    missing = sorted(str(path.relative_to(ROOT)) for path in expected - listed)
    assert not missing, f"docs/examples.md does not list {', '.join(missing)}"
