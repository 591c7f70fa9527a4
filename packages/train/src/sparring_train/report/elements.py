"""HTML elements of reports. Pages load no other files and contain no scripts that run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from os import PathLike
from pathlib import Path

from sparring.errors import DataError
from sparring_train.report.canvas import Figure

__all__ = ["facts", "figure_elements", "section", "table", "tiles", "write_page"]


def write_page(path: str | PathLike[str], title: str, sections: Sequence[str]) -> None:
    """Writes a page atomically. Missing folders are created.

    Args:
        path: the HTML file; an existing one is replaced.
        title: title of the window.
        sections: HTML, from top to bottom; empty sections are skipped.

    Raises:
        DataError: the file cannot be written.
    """
    style = resources.files("sparring_train.report").joinpath("style.css").read_text("utf-8")
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(each for each in sections if each)
        + "\n</main>\n</body>\n</html>\n"
    )
    _write_whole(Path(path), page)


def section(title: str, content: str) -> str:
    return f'<h2>{escape(title)}</h2><div class="box">{content}</div>'


def tiles(values: Sequence[tuple[str, str]]) -> str:
    """Renders the most important numbers, each with a remark."""
    cells = (
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(remark)}</span></div>'
        for value, remark in values
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def figure_elements(figures: Sequence[Figure]) -> str:
    if not figures:
        return ""
    shown = (
        f"<figure><h3>{escape(figure.title)}</h3><figcaption>{escape(figure.caption)}</figcaption>"
        f"{figure.svg}</figure>"
        for figure in figures
    )
    return "<h2>Figures</h2>" + "\n".join(shown)


def facts(values: Mapping[str, str]) -> str:
    """Renders a table of names and values."""
    lines = (
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in values.items()
    )
    return f"<table>{''.join(lines)}</table>"


def table(
    head: Sequence[str], lines: Sequence[Sequence[str]], *, num_texts: int = 1, folded: str = ""
) -> str:
    """Renders a table whose first columns are texts, and the others numbers.

    Args:
        head: titles of the columns.
        lines: cells of each line.
        num_texts: number of columns of texts.
        folded: label of the folded table; empty: the table is not folded.
    """

    def row(tag: str, cells: Sequence[str]) -> str:
        opened = [f"<{tag}>"] * num_texts + [f'<{tag} class="number">'] * (len(cells) - num_texts)
        shown = (
            f"{start}{escape(cell)}</{tag}>" for start, cell in zip(opened, cells, strict=True)
        )
        return f"<tr>{''.join(shown)}</tr>"

    whole = f"<table>{row('th', head)}{''.join(row('td', line) for line in lines)}</table>"
    summary = f"<summary>{escape(folded)}</summary>"
    return f"<details>{summary}{whole}</details>" if folded else whole


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(text, "utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"writing the report to {path} failed: {error}; choose another report.path or --output",
            path=str(path),
        ) from error
