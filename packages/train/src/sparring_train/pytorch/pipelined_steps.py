"""Steps of a training run with a `TrainPipeline`."""

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
    """Inputs of the task's loss."""
    share: float
    """Factor of the loss."""
    num_samples: int
    """Number of samples of the micro-batch, over all ranks."""


class StepFunctions(Protocol):
    """Functions that a step consists of."""

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
    """Makes one step per `micro_batches` pieces, and prefetches the lookups of the next piece.

    Args:
        stepping: computes losses and makes steps.
        model: contains the parameters and tables on which losses depend.
        pieces: pieces of complete steps.
    """
    # The pipeline only calls `zero_grad` and `step` of an optimizer.
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
