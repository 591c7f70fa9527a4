"""Tests of the checks in `tools/check_house.py`."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

check_house: Any = import_module("check_house")


def test_conflicts_of_a_merge_are_reported_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs/page.md"
    page.write_text("Title\n=======\n\nA line.\n")
    assert list(check_house.conflict_markers(tmp_path)) == []
    page.write_text("<<<<<<< HEAD\none\n=======\ntwo\n>>>>>>> 1a2b3c4 Add two\n")
    assert list(check_house.conflict_markers(tmp_path)) == [
        f"docs/page.md:{line}: a conflict of a merge; keep one side" for line in (1, 5)
    ]


def test_long_documentation_is_reported_with_count_and_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_house, "MAX_WORDS", 4)
    page = tmp_path / "docs/how-to/page.md"
    page.parent.mkdir(parents=True)
    page.write_text("one two\n\n```sh\nnot counted at all\n```\n\nthree four\n")
    assert list(check_house.long_documentation(tmp_path)) == []
    (tmp_path / "docs/table.md").write_text("| - |\n")
    (tmp_path / "docs/reference").mkdir()
    (tmp_path / "docs/reference/config.md").write_text("a generated page with many words\n")
    assert list(check_house.long_documentation(tmp_path)) == []
    cells = [{"cell_type": "markdown", "source": ["five"]}, {"cell_type": "code", "source": ["x"]}]
    (tmp_path / "docs/other.ipynb").write_text(json.dumps({"cells": cells}))
    assert list(check_house.long_documentation(tmp_path)) == [
        "docs: contains 5 words outside of code blocks, more than 4; remove what another page "
        "explains, and link to that page"
    ]
