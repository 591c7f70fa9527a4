"""Interface between a training loop and a framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from sparring import State, StepContainer

__all__ = ["Predict", "StepResult", "Trainer"]

Predict = Callable[[Any], npt.NDArray[Any]]
"""A rank's part of a batch, which may be empty → one prediction for each of its samples. With the loss
`ranking` it is two vectors for each, of user and of item: ``(2, b, dim)``."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step that was made."""

    batch: Any
    """That it was made of, whole."""
    loss: float
    """The mean over the batch, on all ranks the same."""
    num_examples: int
    """Of the step, over all ranks."""


class Trainer(Protocol):
    """A model in a framework, and its optimizers."""

    @property
    def container(self) -> StepContainer:
        """Where the tables live."""

    def steps(self, batches: Iterator[Any]) -> Iterator[StepResult]:
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
