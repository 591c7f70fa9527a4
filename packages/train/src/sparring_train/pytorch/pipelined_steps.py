"""The steps of a training run, by a `TrainPipeline`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from sparring_torch import TrainPipeline

__all__ = ["Piece", "StepFunctions", "pipelined_steps"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A rank's part of a micro-batch."""

    inputs: Any
    """As the task's loss wants them."""
    share: float
    """Factor of its loss."""
    num_samples: int
    """Of the micro-batch, over all ranks."""


class StepFunctions(Protocol):
    """Maker of a run's steps."""

    def loss(self, piece: Piece) -> Tensor: ...

    def zero_grad(self) -> None: ...

    def step(self) -> None: ...


class _PieceLoss(nn.Module):
    """Module that the pipeline calls with a piece."""

    def __init__(self, stepping: StepFunctions, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._stepping = stepping

    def forward(self, piece: Piece) -> tuple[Tensor, None]:
        return self._stepping.loss(piece), None


def pipelined_steps(
    stepping: StepFunctions, model: nn.Module, pieces: Iterator[Piece], *, micro_batches: int
) -> Iterator[None]:
    """Makes a step of each `micro_batches` pieces, and looks the next piece up meanwhile.

    Args:
        stepping: computes losses and makes steps.
        model: what the losses depend on; holds the tables.
        pieces: a whole number of steps.
    """
    # It is stepped as an optimizer is, and is asked for nothing else.
    optimizers = [cast("torch.optim.Optimizer", stepping)]
    pipeline: TrainPipeline[Piece, None] = TrainPipeline(
        _PieceLoss(stepping, model), optimizers, micro_batches=micro_batches
    )
    while True:
        try:
            for _ in range(micro_batches):
                pipeline.progress(pieces)
        except StopIteration:
            return
        yield
