"""What came of some trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """What came of some trials.

    Args:
        trials: how many were made.
        counts: what happened, in words → how often.
        failures: what must not happen, a line each, with what it takes to see it again.
        skipped: why nothing was tried; empty where something was.
    """

    trials: int
    counts: Mapping[str, int] = field(default_factory=dict)
    failures: Sequence[str] = ()
    skipped: str = ""
