"""Results of trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """Results of trials.

    Args:
        trials: number of trials.
        counts: event → number of occurrences.
        failures: a line for each violated promise, with the information to reproduce it.
        skipped: why no trials were run; empty if they were.
    """

    trials: int
    counts: Mapping[str, int] = field(default_factory=dict)
    failures: Sequence[str] = ()
    skipped: str = ""
