"""The comparison of two runs as one static HTML file that loads nothing."""

from __future__ import annotations

from html import escape
from os import PathLike

from sparring_train.report.comparison import Comparison, Line
from sparring_train.report.elements import figure_elements, section, write_page
from sparring_train.report.figures import draw_both

__all__ = ["write_comparison"]

_TITLE = "sparring: two training runs"
_MOST_UNFOLDED = 24


def write_comparison(path: str | PathLike[str], comparison: Comparison) -> None:
    """Writes the page; folders that are missing are made, and a file of that name is replaced.

    Raises:
        DataError: the file cannot be written.
        PluginError: matplotlib is not installed.
    """
    first, second = (run.series for run in comparison.runs)
    sections = [
        f"<h1>{_TITLE}</h1>",
        f'<p class="lead">A is {escape(comparison.names[0])}, B is {escape(comparison.names[1])}; '
        "differences are B minus A.</p>",
        *(
            _section(title, lines)
            for title, lines in comparison.sections.items()
            if title == "results"
        ),
        figure_elements(draw_both(first, second)),
        *(
            _section(title, lines)
            for title, lines in comparison.sections.items()
            if title != "results"
        ),
    ]
    write_page(path, _TITLE, sections)


def _section(title: str, lines: tuple[Line, ...]) -> str:
    heading = title.capitalize()
    if not lines:
        return section(heading, "<p>No difference.</p>")
    cells = (
        "".join(f'<td class="number">{escape(cell)}</td>' for cell in line.cells())
        for line in lines
    )
    body = "".join(
        f"<tr><td>{escape(line.name)}</td>{numbers}</tr>"
        for line, numbers in zip(lines, cells, strict=True)
    )
    head = "<tr><th></th>" + "".join(
        f'<th class="number">{name}</th>' for name in ("A", "B", "Difference")
    )
    table = f"<table>{head}</tr>{body}</table>"
    if len(lines) > _MOST_UNFOLDED:
        table = f"<details><summary>All {len(lines)} lines</summary>{table}</details>"
    return section(heading, table)
