"""How figures are taken: alternately, medians, as ratios, beside the bar that they should reach."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from rich.markup import escape
from rich.table import Table

__all__ = ["Figure", "Timing", "alternate", "ratios", "table_of"]


@dataclass(frozen=True)
class Figure:
    """One line of a report.

    Args:
        what: what was measured, in words.
        value: the figure, formatted, with its unit.
        bar: what it should reach, formatted, or None where nothing is promised.
        is_reached: None where there is no bar.
        detail: what it was compared with.
        ratio: the figure as a number, where it is a ratio that a plot may show.
    """

    what: str
    value: str
    bar: str | None = None
    is_reached: bool | None = None
    detail: str = ""
    ratio: float | None = None


@dataclass(frozen=True)
class Timing:
    """Seconds of each round of one contender."""

    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return median(self.seconds)


def alternate(
    contenders: dict[str, Callable[[], object]], *, rounds: int, warm_up: int = 3
) -> dict[str, Timing]:
    """Runs each contender once a round, in turn, so that a drift of the machine meets all of them."""
    for _ in range(warm_up):
        for run in contenders.values():
            run()
    timings = {name: Timing() for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            timings[name].seconds.append(time.perf_counter() - start)
    return timings


def ratios(theirs: Timing, ours: Timing) -> list[float]:
    """How many times as fast ours is, round by round: rounds of one place in time are compared."""
    return [their / our for their, our in zip(theirs.seconds, ours.seconds, strict=True)]


def table_of(title: str, figures: Sequence[Figure]) -> Table:
    """Figures as people read them."""
    table = Table("what", "figure", "to reach", "", "compared with", title=title)
    for figure in figures:
        mark = {None: "", True: "reached", False: "MISSED"}[figure.is_reached]
        table.add_row(figure.what, figure.value, figure.bar or "", mark, escape(figure.detail))
    return table
