"""Interface between the training loop and a framework."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from sparring import State, StepContainer

__all__ = ["Predict", "StepResult", "Trainer"]

Predict = Callable[[Any], npt.NDArray[Any]]
"""Computes one prediction per example of a rank's part of a batch, which may be empty. With the loss
`ranking`, a prediction consists of a user vector and an item vector: ``(2, b, dim)``."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one step."""

    batch: Any
    """The whole batch of the step."""
    loss: float
    """Mean loss over the batch, equal on all ranks."""
    num_examples: int
    """Number of examples of the step, over all ranks."""
    is_stopping: bool
    """Whether the run should stop after this step, because `stop` was set on any rank; equal on all
    ranks."""
    outputs: npt.NDArray[Any] | None = None
    """Outputs of the model for this rank's part of the batch before the update: logits, or predicted
    numbers, ``(b,)``. None if they are not measured, or the model has no such outputs."""


class Trainer(Protocol):
    """A model of a framework, with its optimizers."""

    @property
    def container(self) -> StepContainer:
        """Container of the tables."""

    def steps(self, batches: Iterator[Any], stop: threading.Event) -> Iterator[StepResult]:
        """Makes one step per batch, and yields its result.

        Args:
            batches: whole batches, equal on all ranks; each rank trains on its part. Batches may be
                requested before the steps of earlier ones are made, for prefetch.
            stop: set if this rank should stop, at any time. Ranks exchange its state together with
                the loss of each step.

        Raises:
            NonFiniteGradientError: a gradient contains NaN or infinity, and the policy is to raise;
                nothing was changed.
        """

    def predict(self, batch: Any) -> npt.NDArray[Any]:
        """See `Predict`. Has no side effects."""

    def states(self) -> Mapping[str, State]:
        """Returns the state that is needed to resume, in addition to the state that the container saves.

        One state has the framework's name in configurations, from which a reader knows the framework
        that wrote a snapshot.
        """

    def restore(self, states: Mapping[str, State]) -> None:
        """Loads the result of `states`."""

    def skipped(self) -> Mapping[str, int]:
        """Returns the number of steps of this rank that were skipped because of non-finite gradients."""

    def versions(self) -> Mapping[str, str]:
        """Returns the versions of the framework, for the report."""
