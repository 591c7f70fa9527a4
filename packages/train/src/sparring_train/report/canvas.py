"""Style of a report's figures, and conversion to SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from sparring.errors import PluginError

__all__ = [
    "COLORS",
    "GREY",
    "INK",
    "PALE",
    "Figure",
    "legend_beside",
    "limit_to_bulk",
    "make_figure",
]

# Colors of Okabe and Ito, which color-blind readers can distinguish, without yellow.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, GREY, PALE = "#1f2933", "#7b8794", "#cbd2d9"
_WIDTH, _HEIGHT = 7.2, 3.9  # Inches; the page scales them.
_LINE = "#e4e7eb"

_STYLE: Any = {
    # Text remains text, so that readers can search and copy it.
    "svg.fonttype": "none",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _LINE,
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": True,
    "legend.framealpha": 0.9,
    "legend.edgecolor": _LINE,
    "legend.fontsize": 9,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a report."""

    title: str
    caption: str
    """One or two sentences of plain text."""
    svg: str
    """The element of the drawing, for a page."""


def make_figure(title: str, caption: str, draw: Callable[[Any], None]) -> Figure:
    """Draws a figure over steps; `draw` is called with matplotlib's axes.

    Raises:
        PluginError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise PluginError(
            "a report requires matplotlib, which is not installed; run: pip install 'sparring[report]'",
            requirement="matplotlib",
        ) from error
    # The salt makes ids of drawings in one page distinct.
    with mpl.rc_context(_STYLE | {"svg.hashsalt": title}):
        canvas = Canvas(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        axes = canvas.add_subplot()
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        draw(axes)
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        canvas.savefig(file, format="svg", metadata=nothing)
    # Groups have equal ids in all drawings, and nothing refers to them.
    drawing = re.sub(r'<g id="[^"]*"', "<g", file.getvalue().partition("<svg")[2])
    return Figure(title, caption, f'<svg role="img" aria-label="{escape(title)}"{drawing}')


def legend_beside(axes: Any) -> None:
    """Adds a legend to the right of the axes, where it covers no line."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, frameon=False)


def limit_to_bulk(axes: Any, values: Sequence[float]) -> None:
    """Limits the y-axis to most values, so that outliers of the first steps do not flatten the rest."""
    finite = np.array(values)[np.isfinite(values)]
    if finite.size < 2:
        return
    low, high = float(finite.min()), float(np.percentile(finite, 99))
    margin = 0.06 * max(high - low, 1e-6)
    axes.set_ylim(low - margin, high + margin)
