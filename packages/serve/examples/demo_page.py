"""An HTML page of a demo: a picture and figures, in one file without scripts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BLUE", "GREEN", "RED", "svg_of", "write_page"]

# Okabe and Ito's colours, which stay apart for colour-blind readers.
BLUE, RED, GREEN = "#0072B2", "#D55E00", "#009E73"
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1f2933}table{border-collapse:collapse}td,th{padding:.25rem 1rem .25rem 0;text-align:left}"
    "td:last-child{text-align:right}svg{width:100%;height:auto}"
)


def write_page(
    path: Path,
    title: str,
    introduction: str,
    picture: str,
    facts: Sequence[tuple[str, str]],
    errors: Sequence[str],
) -> str:
    """Writes the page, with the first 20 errors; returns its figures as text."""
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in facts
    )
    told = "".join(f"<li>{escape(text)}</li>" for text in errors[:20])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>sparring: {escape(title.lower())}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><p>{escape(introduction)}</p>"
        f"{picture}<table>{rows}</table>"
        f"{'<h2>Errors</h2><ul>' + told + '</ul>' if told else ''}</body></html>\n",
        "utf-8",
    )
    return "\n".join(f"{name:<58}{value:>18}" for name, value in facts)


def svg_of(picture: Figure) -> str:
    """The picture as an element of a page."""
    file = io.StringIO()
    picture.savefig(file, format="svg")
    text = file.getvalue()
    return text[text.index("<svg") :]
