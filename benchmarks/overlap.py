"""What the ring gains on `sequential`, and how near it comes to the slower of lookup and transfer."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.measuring import Figure

__all__ = ["excess_figure", "ratio_figure"]

RATIO_BAR, EXCESS_BAR = 1.6, 1.15


def ratio_figure(what: str, seconds: Mapping[str, float], more: str = "") -> Figure:
    """The ring beside `sequential`.

    Args:
        what: was measured.
        seconds: by schedule.
        more: to be said behind the times.
    """
    ratio = seconds["sequential"] / seconds["ring"]
    return Figure(
        what=what,
        value=f"{ratio:.2f} x sequential",
        bar=f">= {RATIO_BAR}",
        is_reached=ratio >= RATIO_BAR,
        detail=f"ring {seconds['ring'] * 1e3:.0f} ms, "
        f"sequential {seconds['sequential'] * 1e3:.0f} ms{more}",
        ratio=ratio,
    )


def excess_figure(seconds: Mapping[str, float], transfer: float, detail: str) -> Figure:
    """The ring beside what no schedule can undercut; `transfer` and the lookup take equal seconds."""
    excess = seconds["ring"] / transfer
    return Figure(
        what="the same against the slower of lookup and transfer",
        value=f"{excess:.2f} x max(lookup, transfer)",
        bar=f"<= {EXCESS_BAR}",
        is_reached=excess <= EXCESS_BAR,
        detail=detail,
    )
