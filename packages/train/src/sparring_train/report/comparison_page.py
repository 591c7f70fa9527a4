"""Comparison of two runs as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from os import PathLike

from sparring_train.report.comparison import Comparison, Line
from sparring_train.report.elements import figure_elements, section, table, write_page
from sparring_train.report.figures import draw_both

__all__ = ["write_comparison"]

_TITLE = "sparring: two training runs"
_MAX_UNFOLDED = 24


def write_comparison(path: str | PathLike[str], comparison: Comparison) -> None:
    """Writes the page. Missing folders are created, and an existing file is replaced.

    Raises:
        DataError: the file cannot be written.
        PluginError: matplotlib is not installed.
    """
    first, second = (run.series for run in comparison.runs)
    found = {title: _section(title, lines) for title, lines in comparison.sections.items()}
    results = found.pop("results")
    lead = f"A is {comparison.names[0]}, B is {comparison.names[1]}; differences are B minus A."
    sections = [
        f"<h1>{_TITLE}</h1>",
        f'<p class="lead">{escape(lead)}</p>',
        results,
        figure_elements(draw_both(first, second)),
        *found.values(),
    ]
    write_page(path, _TITLE, sections)


def _section(title: str, lines: Sequence[Line]) -> str:
    if not lines:
        return section(title.capitalize(), "<p>No difference.</p>")
    cells = [(line.name, *line.cells()) for line in lines]
    folded = f"All {len(lines)} lines" if len(lines) > _MAX_UNFOLDED else ""
    return section(title.capitalize(), table(("", "A", "B", "Difference"), cells, folded=folded))
