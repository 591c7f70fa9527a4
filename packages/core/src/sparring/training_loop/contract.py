"""What a training loop asks of its data and of a framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sparring.data import ClickBatch, RatingBatch
from sparring.ranks import Ranks
from sparring.step import StepContainer

__all__ = ["Batch", "Predict", "Source", "Trainer"]

Batch = TypeVar("Batch", ClickBatch, RatingBatch)

Predict = Callable[[Any], npt.NDArray[Any]]
"""A rank's part of a batch, which may be empty → one prediction for each of its samples."""


class Source(Protocol[Batch]):
    """The samples of a run."""

    @property
    def steps_per_epoch(self) -> int | None:
        """None where nobody knows before the end."""

    def batches(self, epoch: int) -> Iterator[Batch]:
        """All training samples once; the same on all ranks."""

    def evaluate(self, predict: Predict, ranks: Ranks) -> dict[str, float]:
        """Metrics on the test samples."""

    def ids(self, batch: Batch) -> dict[str, npt.NDArray[np.int64]]:
        """Feature → its ids, for the report."""

    def extra(self) -> dict[str, Any]:
        """What else is worth showing a person, JSON types only."""


class Trainer(Protocol):
    """A model in a framework, and its optimizers."""

    @property
    def container(self) -> StepContainer:
        """Where the tables live."""

    def train_on(self, batch: Any, step: int) -> float:
        """One step of all ranks on a batch that all have: each takes its own part.

        Args:
            batch: whole.
            step: steps taken before.

        Returns:
            The mean loss over the batch, on all ranks the same.

        Raises:
            NonFiniteGradientError: a gradient holds NaN or infinity, and the policy is to raise;
                nothing was changed.
        """

    def predict(self, batch: Any) -> npt.NDArray[Any]:
        """See `Predict`. Changes nothing."""

    def skipped(self) -> Mapping[str, int]:
        """What was skipped for gradients that are not finite: name → count, of this rank."""

    def versions(self) -> Mapping[str, str]:
        """The versions of the framework, for the report."""
