"""Result of a training run, and reports of its progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Progress", "SilentProgress", "TrainResult"]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Result of a training run."""

    metrics: Mapping[str, float]
    """Metrics on the test samples: ``rmse``, or ``auc`` and ``log_loss``."""
    rows: Mapping[str, int]
    """Table name → rows held at the end."""
    steps: int
    """Steps taken."""
    seconds: float
    """Time from the first step to the last evaluation; reading data beforehand is left out."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further results worth showing a person, JSON types only: ``best_auc``, ``report_path``, …"""
    not_admitted: Mapping[str, int] = field(default_factory=dict)
    """Table name → gradients that its admission filter dropped; tables with a filter only."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Counts of what was left out because it was not finite, where that is the policy:
    ``rows_skipped_non_finite``, ``dense_steps_skipped_non_finite``; and ``rows_expired``, where
    rows expire."""
    tiers: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Table name → the counters of each of its tiers, hottest first, summed over ranks; tables in
    stacks of storages only. See ``docs/reference/metrics.md``."""
    resumed_steps: int = 0
    """Of `steps`, those that were taken before the run was resumed; `seconds` is without them."""
    peak_memory_bytes: int = 0
    """The most memory that a process of the run has had resident, the largest of all ranks; 0 where
    that is unknown."""
    best_step: int | None = None
    """The step that was the best on the validation samples; None without such samples."""
    validation: Mapping[str, float] = field(default_factory=dict)
    """Metrics on the validation samples after `best_step`."""
    rank: int = 0
    """Rank that returns this result; all ranks have the same, and the first one shows it."""

    @property
    def steps_per_second(self) -> float | None:
        """Of the steps that this run took, evaluation included; None where it took none."""
        taken = self.steps - self.resumed_steps
        return taken / self.seconds if taken and self.seconds > 0 else None


class Progress(Protocol):
    """Receiver of a trainer's progress. Calls come from one thread, steps in order."""

    def on_start(self, total_steps: int | None) -> None:
        """Training begins; `total_steps` is None where it is unknown."""

    def on_step(self, step: int, loss: float, samples: int) -> None:
        """A step ended.

        Args:
            step: steps taken so far, 1 after the first.
            loss: mean loss over the samples of this step.
            samples: samples in this step.
        """

    def on_metrics(self, step: int, metrics: Mapping[str, float], part: str = "test") -> None:
        """The test or the validation samples were evaluated after `step`; `part` names them."""

    def on_message(self, message: str) -> None:
        """One line that a person should read now."""

    def on_end(self) -> None:
        """Training ended, well or not."""


class SilentProgress:
    """A `Progress` that says nothing."""

    def on_start(self, total_steps: int | None) -> None: ...

    def on_step(self, step: int, loss: float, samples: int) -> None: ...

    def on_metrics(self, step: int, metrics: Mapping[str, float], part: str = "test") -> None: ...

    def on_message(self, message: str) -> None: ...

    def on_end(self) -> None: ...
