"""Looks up whole batches directly in the tables.

    pool, gather ──► one native call for all tables ──► autograd node ──► model, loss
                                                               │
    ResourceManager.accumulate_sources(id, gradients) ◄────────┘

The lookup neither deduplicates ids nor copies rows. The step deduplicates, and visits each row once.
If rows are on other ranks, or if weights require a gradient, which needs the rows again, shadows are
used instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparring.adapter import ResourceManager
from sparring.errors import InvalidArgumentError

__all__ = ["Bags", "DirectBatch", "Ids", "with_gradient"]

Index = npt.NDArray[np.int64]

_version_of = attrgetter("_version")


@dataclass(slots=True)
class Bags:
    """Bags of ids for several features."""

    ids: Index
    """``(n,)``"""
    offsets: Index
    """``(features of the batch * num_bags + 1,)``, non-decreasing from 0 to n."""
    weights: Tensor | None
    """``(n,)``"""
    positions: Sequence[int]
    """Position in the batch of each looked-up feature."""
    num_bags: int
    """Number of bags per feature."""

    def numpy_weights(self, dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
        """Returns the weights as an array of `dtype`."""
        if self.weights is None:
            return None
        return np.ascontiguousarray(self.weights.detach().cpu().numpy(), dtype)

    def has_ids_of(self, other: Bags | Ids) -> bool:
        """Whether both contain the same bags of ids; weights may differ."""
        return (
            isinstance(other, Bags)
            and (self.num_bags, list(self.positions)) == (other.num_bags, list(other.positions))
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.ids, other.ids)
        )


@dataclass(slots=True)
class Ids:
    """Ids of several features, without pooling."""

    ids: Index
    """``(n,)``"""
    spans: Sequence[tuple[int, int]]
    """The half-open range of each feature in `ids`."""

    def has_ids_of(self, other: Bags | Ids) -> bool:
        """Whether both contain the same ids of each feature."""
        return (
            isinstance(other, Ids)
            and list(self.spans) == list(other.spans)
            and np.array_equal(self.ids, other.ids)
        )


class DirectBatch:
    """A batch looked up in training; it lives until its gradients arrive or its graph is freed."""

    __slots__ = ("_make_sources", "_resources", "_shadow_id")

    def __init__(
        self,
        resources: ResourceManager,
        tables: Sequence[str],
        make_sources: Callable[[Sequence[npt.NDArray[Any]]], Any],
    ) -> None:
        self._resources = resources
        self._make_sources = make_sources
        self._shadow_id = resources.register_direct(tables)

    def accumulate_sources(self, gradients: Sequence[Tensor]) -> None:
        """Hands the gradients of the outputs to the step."""
        kept = [each if _has_contiguous_rows(each) else each.contiguous() for each in gradients]
        # They are not copied, so they must not change before the step.
        versions = list(map(_version_of, kept))

        def check() -> None:
            if versions != list(map(_version_of, kept)):
                raise InvalidArgumentError(
                    "step: the gradient of looked-up embeddings was changed in place after backward; "
                    "change a clone of it, or register a hook on the output"
                )

        sources = self._make_sources(list(map(Tensor.numpy, kept)))
        self._resources.accumulate_sources(self._shadow_id, sources, check)

    def __del__(self) -> None:
        # A compiler may create an object without calling __init__ while it traces.
        if hasattr(self, "_shadow_id"):
            self._resources.release(self._shadow_id)


def _has_contiguous_rows(gradient: Tensor) -> bool:
    """Whether native code can read a gradient without a copy. Models often concatenate embeddings with
    other values, and then get a range of the columns of a larger gradient."""
    return gradient.dim() == 2 and (
        gradient.is_contiguous()
        or (gradient.stride(1) == 1 and gradient.stride(0) >= gradient.shape[1])
    )


def with_gradient(batch: DirectBatch, outputs: Sequence[npt.NDArray[Any]]) -> tuple[Tensor, ...]:
    """Returns the outputs of a lookup as tensors whose gradients go to `batch`."""
    made: tuple[Tensor, ...] = _Output.apply(_ANCHOR, batch, *outputs)  # type: ignore[no-untyped-call]
    return made


# Requires a gradient, so that autograd calls backward although no input is a parameter.
_ANCHOR = torch.empty(0, requires_grad=True)


class _Output(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, _anchor: Tensor, batch: DirectBatch, *outputs: npt.NDArray[Any]
    ) -> tuple[Tensor, ...]:
        ctx.batch = batch
        ctx.num_outputs = len(outputs)
        return tuple(map(torch.from_numpy, outputs))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        # With create_graph, autograd calls it in grad mode, but the rows' gradient is no part of a graph.
        if torch.is_grad_enabled():
            gradients = tuple(each if each is None else each.detach() for each in gradients)
        ctx.batch.accumulate_sources(gradients)
        num_outputs: int = ctx.num_outputs
        return (None,) * (2 + num_outputs)
