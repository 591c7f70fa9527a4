"""Each invariant on the format's page is named by a test, and each named invariant exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[4] / "docs" / "format" / "snapshot.md"


def test_each_invariant_has_a_test_that_names_it() -> None:
    if not PAGE.exists():
        pytest.skip("the documentation is not beside the package")
    listed = re.findall(r"^\| (S\d+) \|", PAGE.read_text(), re.M)
    assert listed == [f"S{number}" for number in range(1, len(listed) + 1)]
    named = {
        each
        for path in Path(__file__).parent.glob("test_*.py")
        for line in re.findall(r'^    """((?:S\d+(?:, )?)+)"""$', path.read_text(), re.M)
        for each in line.split(", ")
    }
    assert named == set(listed)
