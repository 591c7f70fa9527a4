"""`python -m benchmarks.chart` draws the chart of the README from `benchmarks/published.json`.

The file contains figures in the format of `figures.json`, which each run of the benchmarks writes. In
addition, each figure has the session that measures it, the table row of docs/explanation/performance.md
that contains it, and the highest ratio if several runs gave a range.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from benchmarks.measuring import Figure

__all__ = ["CHART", "PUBLISHED", "PublishedFigure", "draw", "read_published"]

PUBLISHED = Path(__file__).parent / "published.json"
CHART = Path(__file__).parents[1] / "docs/benchmarks.svg"

WIDTH, TOP, LINE = 900, 76, 36
# The horizontal axis: its pixels, and the ratios at its ends.
LEFT, RIGHT = 380, 750
LOWEST, HIGHEST = 0.15, 100.0
TICKS = (0.25, 0.5, 1, 2, 5, 10, 20, 50)
FASTER, FASTER_RANGE = "#2a7f62", "#8fc4b0"
SLOWER, SLOWER_RANGE = "#b5523b", "#e0aa9c"


@dataclass(frozen=True)
class PublishedFigure(Figure):
    """A figure that the README publishes.

    Args:
        ratio_to: the highest ratio if the figure is a range, otherwise None.
        session: the command that measures the figure.
        row: the beginning of the table row of docs/explanation/performance.md that contains the figure.
    """

    ratio_to: float | None = None
    session: str = ""
    row: str = ""

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest ratio."""
        assert self.ratio is not None
        return self.ratio, self.ratio if self.ratio_to is None else self.ratio_to


def read_published(path: Path = PUBLISHED) -> dict[str, list[PublishedFigure]]:
    """Returns the published figures of each benchmark."""
    results = json.loads(path.read_text())
    return {name: [PublishedFigure(**each) for each in some] for name, some in results.items()}


def draw(figures: Sequence[PublishedFigure]) -> str:
    """Returns an SVG image with one bar per figure on a logarithmic scale, the fastest at the top."""
    figures = sorted(figures, key=lambda figure: -math.prod(figure.range))
    bottom = TOP + LINE * len(figures)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 34}" role="img" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#102027">',
        "  <title>Speed of sparring relative to other libraries</title>",
        f'  <rect width="{WIDTH}" height="{bottom + 34}" rx="6" fill="#ffffff"/>',
        _text(16, 28, "Speed of sparring relative to other libraries", size=17, weight="bold"),
        _text(
            16,
            50,
            "Two CPU cores. 1 x: equally fast. Light colors: range of several runs.",
            size=12,
        ),
        _square(700, 40, FASTER) + _text(716, 50, "faster", size=12),
        _square(780, 40, SLOWER) + _text(796, 50, "slower", size=12),
    ]
    for tick in TICKS:
        x, color = _place(tick), "#37474f" if tick == 1 else "#cfd8dc"
        lines.append(f'  <path d="M{x} {TOP - 8}V{bottom}" stroke="{color}"/>')
        lines.append(_text(x, bottom + 20, f"{tick:g} x", size=12, anchor="middle"))
    for number, figure in enumerate(figures):
        y = TOP + LINE * number
        lines.append(_text(16, y + 12, figure.what))
        lines.append(_text(16, y + 27, figure.detail, size=12, color="#546e7a"))
        lines += [_bar(y + 4, *part) for part in _parts(*figure.range)]
        lines.append(_text(WIDTH - 16, y + 19, figure.value, anchor="end", weight="bold"))
    return "\n".join([*lines, "</svg>", ""])


def _parts(low: float, high: float) -> list[tuple[float, float, str]]:
    """Returns the parts of a bar from 1 to a range: start, end and color."""
    if low >= 1:
        parts = [(1.0, low, FASTER), (low, high, FASTER_RANGE)]
    elif high <= 1:
        parts = [(high, 1.0, SLOWER), (low, high, SLOWER_RANGE)]
    else:
        parts = [(low, 1.0, SLOWER_RANGE), (1.0, high, FASTER_RANGE)]
    return [part for part in parts if part[0] < part[1]]


def _place(ratio: float) -> float:
    share = math.log(ratio / LOWEST) / math.log(HIGHEST / LOWEST)
    return round(LEFT + share * (RIGHT - LEFT), 1)


def _bar(y: float, start: float, end: float, color: str) -> str:
    x = _place(start)
    width = round(_place(end) - x, 1)
    return f'  <rect x="{x}" y="{y}" width="{width}" height="20" fill="{color}"/>'


def _square(x: float, y: float, color: str) -> str:
    return f'  <rect x="{x}" y="{y}" width="11" height="11" fill="{color}"/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int | None = None,
    color: str | None = None,
    anchor: str | None = None,
    weight: str | None = None,
) -> str:
    given = {"font-size": size, "fill": color, "text-anchor": anchor, "font-weight": weight}
    options = "".join(f' {name}="{value}"' for name, value in given.items() if value is not None)
    return f'  <text x="{x}" y="{y}"{options}>{escape(text)}</text>'


if __name__ == "__main__":
    CHART.write_text(draw([each for some in read_published().values() for each in some]))
    print(f"written: {CHART}")
