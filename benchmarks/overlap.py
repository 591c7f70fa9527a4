"""The speedup of the ring over `sequential`, and its excess over the slower of lookup and transfer."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.measuring import Figure

__all__ = ["excess_figure", "ratio_figure"]

RATIO_BAR, EXCESS_BAR = 1.6, 1.15


def ratio_figure(what: str, seconds: Mapping[str, float], more: str = "") -> Figure:
    """Returns the figure of the ring compared with `sequential`.

    Args:
        what: description of the measurement.
        seconds: seconds by schedule.
        more: text after the times.
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
    """Returns the figure of the ring compared with its limit; `transfer` and lookup take equal time."""
    excess = seconds["ring"] / transfer
    return Figure(
        what="the same, compared with the slower of lookup and transfer",
        value=f"{excess:.2f} x max(lookup, transfer)",
        bar=f"<= {EXCESS_BAR}",
        is_reached=excess <= EXCESS_BAR,
        detail=detail,
    )
