"""`ColumnInputs`: a batch of examples as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from sparring_torch import KeyedJaggedTensor
from sparring_train.loop.step_items import StepItems

__all__ = ["ColumnInputs"]


@dataclass(frozen=True, slots=True)
class ColumnInputs:
    """A batch as tensors."""

    numbers: Tensor
    """``(b, k)``"""
    features: KeyedJaggedTensor
    """Ids of all features; its stride is b."""
    ids: Mapping[str, Tensor]
    """Feature → ids ``(n,)``, concatenated over examples, for tables that look up one feature. They are
    fields of the batch, so that a pipeline can prefetch them."""
    labels: Tensor | None
    """``(b,)``"""
    weights: Tensor | None
    """``(b,)``"""
    step_items: StepItems | None = None
    """Items of the step, for training with the loss `ranking`."""
