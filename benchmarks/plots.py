"""Plots the ratios of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measuring import Figure

__all__ = ["plot_ratios"]


def plot_ratios(results: Mapping[str, Sequence[Figure]], path: Path) -> Path | None:
    """Draws bars on a logarithmic scale, each with its limit.

    Returns:
        `path`, or None if no figure is a ratio to a peer.
    """
    figures = [
        each
        for some in results.values()
        for each in some
        if each.ratio is not None and (each.bar is None or _wanted(each.bar) is not None)
    ]
    if not figures:
        return None
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(11, 0.5 * len(figures) + 1.2), layout="constrained")
    axes = picture.subplots()
    for place, figure in enumerate(reversed(figures)):
        assert figure.ratio is not None
        colour = {True: "#2a7f62", False: "#b5523b", None: "#7a8794"}[figure.is_reached]
        axes.barh(place, figure.ratio, color=colour, height=0.6)
        axes.text(figure.ratio, place, f" {figure.value}", va="center", fontsize=8)
        wanted = None if figure.bar is None else _wanted(figure.bar)
        if wanted is not None:
            axes.plot([wanted, wanted], [place - 0.4, place + 0.4], color="black", linewidth=1.5)
    axes.set_yticks(range(len(figures)), [each.what for each in reversed(figures)], fontsize=8)
    axes.set_xscale("log")
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xlim(0.3, max(figure.ratio or 1 for figure in figures) * 6)
    axes.set_xlabel("speedup over the peer; black lines: targets")
    picture.savefig(path, dpi=120)
    return path


def _wanted(bar: str) -> float | None:
    """Parses the ratio of a limit such as ``>= 1.5 x``; returns None for other limits."""
    found = re.fullmatch(r">= *([0-9.]+) *x?", bar)
    return None if found is None else float(found[1])
