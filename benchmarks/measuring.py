"""How figures are measured: alternating contenders, medians, ratios, and limits."""

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
        what: description of the measurement.
        value: the formatted figure with its unit.
        bar: the formatted limit, or None if there is none.
        is_reached: whether the limit is reached; None if there is none.
        detail: details, such as the reference.
        ratio: the figure as a number, if it is a ratio for the plot.
    """

    what: str
    value: str
    bar: str | None = None
    is_reached: bool | None = None
    detail: str = ""
    ratio: float | None = None


@dataclass(frozen=True)
class Timing:
    """Seconds of each round of a contender."""

    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return median(self.seconds)


def alternate(
    contenders: dict[str, Callable[[], object]], *, rounds: int, warm_up: int = 3
) -> dict[str, Timing]:
    """Runs each contender once per round, in turn, so that changes of the machine affect all of them."""
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
    """Returns the speedup of ours in each round, so that only simultaneous measurements are compared."""
    return [their / our for their, our in zip(theirs.seconds, ours.seconds, strict=True)]


def table_of(title: str, figures: Sequence[Figure]) -> Table:
    """Formats figures as a table."""
    table = Table("what", "figure", "to reach", "", "compared with", title=title)
    for figure in figures:
        mark = {None: "", True: "reached", False: "MISSED"}[figure.is_reached]
        table.add_row(figure.what, figure.value, figure.bar or "", mark, escape(figure.detail))
    return table
