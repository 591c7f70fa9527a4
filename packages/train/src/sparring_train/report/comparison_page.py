"""Comparison of runs as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from os import PathLike

from sparring_train.report.comparison import Comparison, Line
from sparring_train.report.elements import figure_elements, section, table, write_page
from sparring_train.report.figures import draw_runs

__all__ = ["write_comparison"]

_TITLE = "sparring: comparison of training runs"
_MAX_NAME = 24
_MAX_UNFOLDED = 24


def write_comparison(path: str | PathLike[str], comparison: Comparison) -> None:
    """Writes the page. Missing folders are created, and an existing file is replaced.

    Raises:
        DataError: the file cannot be written.
        PluginError: matplotlib is not installed.
    """
    found = {
        title: _section(title, lines, comparison.columns)
        for title, lines in comparison.sections.items()
    }
    results = found.pop("results")
    named = zip(comparison.labels, comparison.names, strict=True)
    lead = ", ".join(f"{label} is {name}" for label, name in named)
    if len(comparison.names) == 2:
        lead += "; differences are B minus A"
    labels = [_curve_label(*each) for each in zip(comparison.labels, comparison.names, strict=True)]
    curves = [(label, run.series) for label, run in zip(labels, comparison.runs, strict=True)]
    sections = [
        f"<h1>{_TITLE}</h1>",
        f'<p class="lead">{escape(lead)}.</p>',
        results,
        figure_elements(draw_runs(curves)),
        *found.values(),
    ]
    write_page(path, _TITLE, sections)


def _curve_label(label: str, name: str) -> str:
    """Returns the label of a run with the end of its name; $ would start mathematics."""
    shown = name if len(name) <= _MAX_NAME else "…" + name[1 - _MAX_NAME :]
    return f"{label}: {shown}".replace("$", r"\$")


def _section(title: str, lines: Sequence[Line], columns: Sequence[str]) -> str:
    if not lines:
        return section(title.capitalize(), "<p>No difference.</p>")
    cells = [(line.name, *line.cells()) for line in lines]
    folded = f"All {len(lines)} lines" if len(lines) > _MAX_UNFOLDED else ""
    head = ("", *(name.capitalize() for name in columns))
    return section(title.capitalize(), table(head, cells, folded=folded))
