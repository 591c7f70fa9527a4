"""Bar charts as SVG, for a page without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["COLORS", "Bar", "columns", "legend", "rows"]

# Okabe and Ito's colors without yellow, which color-blind readers can distinguish.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 1000, 200, 70, 20, 16
_ROW, _NAMES, _VALUES = 26, 210, 90
_MAX_LABELS = 16


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. `tip` is shown when the pointer rests on it."""

    name: str
    value: float
    color: str
    tip: str


def columns(bars: Sequence[Bar], *, unit: str, limit: float | None = None) -> str:
    """Returns vertical bars, one per rank.

    Args:
        unit: Unit of the values, for the scale.
        limit: Value of a horizontal line, such as the capacity of a memory; None draws no line.
    """
    most = max([each.value for each in bars] + [limit or 0.0]) or 1.0
    height, width = _HEIGHT - _BOTTOM - _TOP, (_WIDTH - _LEFT) / max(len(bars), 1)
    gap = min(2.0, width * 0.15)
    every = -(-len(bars) // _MAX_LABELS)
    parts = [_grid(_TOP + height * (1 - share), f"{most * share:.3g}") for share in (0.0, 0.5, 1.0)]
    parts.append(f'<text x="0" y="{_TOP - 5}">{escape(unit)}</text>')
    for index, bar in enumerate(bars):
        high = height * bar.value / most
        left = _LEFT + index * width
        parts.append(
            f'<rect x="{left + gap / 2:.2f}" y="{_TOP + height - high:.2f}" '
            f'width="{width - gap:.2f}" height="{high:.2f}" fill="{bar.color}">'
            f"<title>{escape(bar.tip)}</title></rect>"
        )
        if index % every == 0:
            parts.append(
                f'<text x="{left + width / 2:.2f}" y="{_HEIGHT - 5}" text-anchor="middle">'
                f"{escape(bar.name)}</text>"
            )
    if limit is not None:
        y = _TOP + height * (1 - limit / most)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.2f}" y2="{y:.2f}" stroke="#b42318" '
            'stroke-width="1.5" stroke-dasharray="6 4"/>'
        )
    return _svg(_HEIGHT, parts)


def rows(bars: Sequence[Bar], *, unit: str) -> str:
    """Returns horizontal bars, each with its name and value."""
    most = max((each.value for each in bars), default=0.0) or 1.0
    room = _WIDTH - _NAMES - _VALUES
    parts = []
    for index, bar in enumerate(bars):
        y = index * _ROW
        wide = room * bar.value / most
        parts.append(
            f'<text x="0" y="{y + 16}">{escape(bar.name)}</text>'
            f'<rect x="{_NAMES}" y="{y + 3}" width="{wide:.2f}" height="18" fill="{bar.color}">'
            f"<title>{escape(bar.tip)}</title></rect>"
            f'<text x="{_NAMES + wide + 8:.2f}" y="{y + 16}">{bar.value:.3g} {escape(unit)}</text>'
        )
    return _svg(len(bars) * _ROW, parts)


def legend(names: Sequence[tuple[str, str]]) -> str:
    """Returns names and colors."""
    items = (
        f'<span><i style="background:{color}"></i>{escape(name)}</span>' for name, color in names
    )
    return f'<div class="legend">{"".join(items)}</div>'


def _grid(y: float, text: str) -> str:
    return (
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.2f}" y2="{y:.2f}" stroke="#e4e7eb"/>'
        f'<text x="{_LEFT - 8}" y="{y + 4:.2f}" text-anchor="end">{text}</text>'
    )


def _svg(height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(parts)}</svg>"
    )
