"""Tests that the README is short, and that its figures are those that the benchmarks published."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
MAX_LINES = 130

# Ratios such as "13.0 x", "0.86 and 0.91 times" and "0.84 to 1.48 x"; "200 lines" is not a ratio.
RATIO = re.compile(r"(\d+(?:\.\d+)?)(?:\s(?:to|and)\s(\d+(?:\.\d+)?))?\s(?:x|times)\b")


@pytest.fixture
def chart(import_program: Any) -> Any:
    """The module that draws the chart."""
    return import_program("benchmarks.chart")


@pytest.fixture
def figures(chart: Any) -> Any:
    """The published figures of each benchmark."""
    return chart.read_published()


def ratios_of(text: str) -> list[tuple[float, float]]:
    return [(float(low), float(high or low)) for low, high in RATIO.findall(text)]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= MAX_LINES


def test_the_chart_shows_the_published_figures(chart: Any, figures: dict[str, list[Any]]) -> None:
    assert str(chart.CHART.relative_to(ROOT)) in README
    drawn = chart.draw([each for some in figures.values() for each in some])
    assert chart.CHART.read_text() == drawn, "run python -m benchmarks.chart"


def test_values_are_their_ratios(figures: dict[str, list[Any]]) -> None:
    for figure in [each for some in figures.values() for each in some]:
        assert ratios_of(figure.value) == [figure.range]


def test_ratios_of_the_readme_are_published(figures: dict[str, list[Any]]) -> None:
    published = {each.range for some in figures.values() for each in some}
    found = ratios_of(README)
    assert found, "the README contains no ratio"
    assert set(found) <= published


def test_published_figures_are_on_the_page_of_performance(figures: dict[str, list[Any]]) -> None:
    page = (ROOT / "docs/explanation/performance.md").read_text().splitlines()
    for figure in [each for some in figures.values() for each in some]:
        rows = [line for line in page if line.startswith(figure.row)]
        assert rows, f"performance.md contains no row {figure.row}"
        assert any(re.search(rf"\b{re.escape(figure.value)}", row) for row in rows), figure


def test_published_figures_name_the_session_that_measures_them(
    figures: dict[str, list[Any]],
) -> None:
    sessions = (ROOT / "sessions/measurements.py").read_text()
    known = importlib.import_module("benchmarks.__main__").BENCHMARKS
    for name, some in figures.items():
        assert name in known
        for figure in some:
            command, _, chosen = figure.session.removeprefix("nox -s ").partition(" -- ")
            assert f"def {command}(" in sessions
            assert chosen == name or (command, name) == (
                "benchmarks_tensorflow",
                "tensorflow_adapter",
            )


def test_missed_targets_are_published(figures: dict[str, list[Any]]) -> None:
    slower = [each for some in figures.values() for each in some if each.range[1] < 1]
    assert len(slower) >= 2
    assert any("Redis" in each.detail for each in slower)
