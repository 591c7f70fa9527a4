"""Interfaces between a training loop, its data and a framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sparring import State, StepContainer
from sparring_train.data.batches import ClickBatch, RatingBatch
from sparring_train.ranks import Ranks

__all__ = ["Batch", "Predict", "Source", "Trained", "Trainer"]

Batch = TypeVar("Batch", ClickBatch, RatingBatch)

Predict = Callable[[Any], npt.NDArray[Any]]
"""A rank's part of a batch, which may be empty → one prediction for each of its samples."""


class Source(Protocol[Batch]):
    """The samples of a run."""

    @property
    def steps_per_epoch(self) -> int | None:
        """None where it is unknown before the end."""

    def batches(self, epoch: int) -> Iterator[Batch]:
        """All training samples once; the same on all ranks."""

    def evaluate(self, predict: Predict, ranks: Ranks) -> dict[str, float]:
        """Metrics on the test samples."""

    def ids(self, batch: Batch) -> dict[str, npt.NDArray[np.int64]]:
        """Feature → its ids, for the report."""

    def extra(self) -> dict[str, Any]:
        """Further results worth showing a person, JSON types only."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A step that was made."""

    batch: Any
    """That it was made of, whole."""
    loss: float
    """The mean over the batch, on all ranks the same."""


class Trainer(Protocol):
    """A model in a framework, and its optimizers."""

    @property
    def container(self) -> StepContainer:
        """Where the tables live."""

    def steps(self, batches: Iterator[Any]) -> Iterator[Trained]:
        """Makes one step of all ranks of each batch, in order, and gives it when it was made.

        Args:
            batches: whole ones, the same on all ranks; each rank takes its own part. More of them
                may be asked for than steps were made, for prefetch.

        Raises:
            NonFiniteGradientError: a gradient holds NaN or infinity, and the policy is to raise;
                nothing was changed.
        """

    def predict(self, batch: Any) -> npt.NDArray[Any]:
        """See `Predict`. Changes nothing."""

    def states(self) -> Mapping[str, State]:
        """State that it needs to go on from here, in addition to what the container saves itself.

        One has the framework's name, as configurations have it: by that it is known whether a
        snapshot was written with this framework.
        """

    def restore(self, states: Mapping[str, State]) -> None:
        """Takes over what `states` gave."""

    def skipped(self) -> Mapping[str, int]:
        """Steps skipped for gradients that are not finite: name → count, of this rank."""

    def versions(self) -> Mapping[str, str]:
        """The versions of the framework, for the report."""
