"""The table of public reports on the reliability page is the list in `museum.py`, and its tests exist."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
REPORTS: Any = runpy.run_path(str(ROOT / "tests/museum.py"))["REPORTS"]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.source)
def test_a_report_has_tests(report: Any) -> None:
    assert report.tests
    for each in report.tests:
        module, name = each.split("::")
        found = [
            node.name
            for folder in ("tests", "src/sparring_testing")
            for path in (ROOT / "packages").glob(f"*/{folder}/**/{module}.py")
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef)
        ]
        assert found.count(name) == 1


def test_the_page_has_each_report() -> None:
    page = (ROOT / "docs/explanation/reliability.md").read_text()
    table = "\n".join(
        f"| {each.source} | {each.situation} | {each.expected} | {each.here} |" for each in REPORTS
    )
    assert table in page, table


def test_the_tests_of_a_report_have_the_mark(request: pytest.FixtureRequest) -> None:
    marked = {each.name for each in request.session.items if each.get_closest_marker("museum")}
    names = {each.split("::")[1] for report in REPORTS for each in report.tests}
    assert all(each.partition("[")[0] in names for each in marked)
    if any("test_public_reports" in each.nodeid for each in request.session.items):
        assert "test_weights_of_frozen_rows_have_gradients" in marked
