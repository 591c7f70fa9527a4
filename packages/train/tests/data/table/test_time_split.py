"""A split by time that chooses many more rows than its fraction says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from .table_files import opened, section


@pytest.mark.parametrize(("num_days", "is_reported"), [(3, True), (90, False)])
def test_a_day_with_many_rows_is_reported(
    num_days: int, is_reported: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.csv"
    lines = [f"i{each},{each % 2},{each % num_days}" for each in range(180)]
    path.write_text("\n".join(["item,clicked,at", *lines, ""]))
    keys = {"categorical": ["item"], "lists": [], "time": "at", "split": {"time": 0.1}}
    opened(section(path, **keys))
    assert ("data.time: 0.1 chooses 0.333 of the rows" in caplog.text) is is_reported
