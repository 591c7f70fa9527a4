"""How figures are taken: alternately, medians, as ratios, beside the bar that they should reach."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

__all__ = ["Figure", "Timing", "alternate", "ratios"]


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
