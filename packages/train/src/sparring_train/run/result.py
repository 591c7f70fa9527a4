"""Result of a training run, and the interface for its progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["OtherRankProgress", "Progress", "SilentProgress", "TrainResult"]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Result of a training run."""

    metrics: Mapping[str, float]
    """Metrics on the test samples: ``rmse``, or ``auc`` and ``log_loss``."""
    rows: Mapping[str, int]
    """Table name → number of rows at the end."""
    steps: int
    """Number of steps."""
    seconds: float
    """Time from the first step to the last evaluation, without reading data before the first step."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further results to show to a user, as JSON types: ``best_auc``, ``report_path``, …"""
    not_admitted: Mapping[str, int] = field(default_factory=dict)
    """Table name → number of gradients that its admission filter dropped, for tables with a filter."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Counts of skipped data: ``rows_skipped_non_finite`` and ``dense_steps_skipped_non_finite`` if
    non-finite gradients are skipped, ``rows_expired`` if rows expire, ``rows_skipped`` if bad rows are
    skipped."""
    tiers: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Table name → counters of each tier, hottest first, summed over ranks, for tables in stacks. See
    ``docs/reference/metrics.md``."""
    resumed_steps: int = 0
    """Number of steps before the run was resumed. They are included in `steps`, but not in `seconds`."""
    peak_memory_bytes: int = 0
    """Maximum resident memory of a process of the run, over all ranks; 0 if unknown."""
    best_step: int | None = None
    """The best step on the validation samples; None without such samples."""
    validation: Mapping[str, float] = field(default_factory=dict)
    """Metrics on the validation samples after `best_step`."""
    is_terminated: bool = False
    """Whether the run was stopped by SIGTERM before its end."""
    rank: int = 0
    """Rank that returns this result. Results are equal on all ranks; the first one shows it."""

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second since the run was started or resumed, including evaluations; None without
        steps."""
        taken = self.steps - self.resumed_steps
        return taken / self.seconds if taken and self.seconds > 0 else None


class Progress(Protocol):
    """Receives the progress of a training. Calls come from one thread, in the order of steps. Only the
    first rank makes them, except for `on_snapshot`."""

    def on_start(self, total_steps: int | None) -> None:
        """Called when training starts; `total_steps` is None if it is unknown."""

    def on_step(self, step: int, loss: float, samples: int) -> None:
        """Called after a step.

        Args:
            step: number of completed steps, 1 after the first one.
            loss: mean loss over the samples of this step.
            samples: number of samples of this step.
        """

    def on_metrics(self, step: int, metrics: Mapping[str, float], part: str = "test") -> None:
        """Called after an evaluation of the test or validation samples after `step`."""

    def on_message(self, message: str) -> None:
        """Called with a one-line message for the user."""

    def on_snapshot(self, step: int, url: str) -> None:
        """Called on every rank when a snapshot of this run is committed, in the same order on all ranks.

        Ranks may call it after different steps, so a method that waits for other ranks would block.
        """

    def on_end(self) -> None:
        """Called when training has ended, also after an error."""


class SilentProgress:
    """A `Progress` that ignores all calls."""

    def on_start(self, total_steps: int | None) -> None: ...

    def on_step(self, step: int, loss: float, samples: int) -> None: ...

    def on_metrics(self, step: int, metrics: Mapping[str, float], part: str = "test") -> None: ...

    def on_message(self, message: str) -> None: ...

    def on_snapshot(self, step: int, url: str) -> None: ...

    def on_end(self) -> None: ...


class OtherRankProgress(SilentProgress):
    """The `Progress` of a rank other than the first: forwards only the calls of `on_snapshot`."""

    def __init__(self, inner: Progress) -> None:
        self._inner = inner

    def on_snapshot(self, step: int, url: str) -> None:
        self._inner.on_snapshot(step, url)
