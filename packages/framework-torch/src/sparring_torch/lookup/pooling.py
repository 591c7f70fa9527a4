"""Gathers and pools rows, with gradients: core's CPU kernels as autograd functions.

Tensors and NumPy arrays share memory, so nothing is copied for a kernel. Shapes: n ids, u keys,
b bags.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparring.adapter import gather as native_gather
from sparring.adapter import pool as native_pool
from sparring.adapter import pool_backward as native_pool_backward
from sparring.adapter import pool_weight_gradient as native_pool_weight_gradient
from sparring.adapter import segment_sum as native_segment_sum

__all__ = ["gather", "pool"]

Index = npt.NDArray[np.int64]


def gather(shadow: Tensor, inverse: Index) -> Tensor:
    """Returns one embedding per id: ``(u, dim)`` → ``(n, dim)``."""
    out: Tensor = _Gather.apply(shadow, inverse)  # type: ignore[no-untyped-call]
    return out


def pool(
    shadow: Tensor, inverse: Index, offsets: Index, weights: Tensor | None, *, mode: str
) -> Tensor:
    """Returns one embedding per bag: ``(u, dim)`` → ``(b, dim)``; an empty bag gives zeros.

    Args:
        shadow: ``(u, dim)``.
        inverse: ``(n,)``, index of the row of each id.
        offsets: ``(b + 1,)`` from 0 to n.
        weights: ``(n,)`` of the shadow's dtype, or None.
        mode: ``sum``, or ``mean``, which divides each sum by the number of ids in the bag.
    """
    out: Tensor = _Pool.apply(shadow, weights, inverse, offsets, mode)  # type: ignore[no-untyped-call]
    return out


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shadow: Tensor, inverse: Index) -> Tensor:
        ctx.inverse, ctx.num_rows = inverse, shadow.shape[0]
        return torch.from_numpy(native_gather(shadow.detach().numpy(), inverse))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        rows = gradient.contiguous().numpy()
        return torch.from_numpy(native_segment_sum(rows, ctx.inverse, ctx.num_rows)), None


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        shadow: Tensor,
        weights: Tensor | None,
        inverse: Index,
        offsets: Index,
        mode: str,
    ) -> Tensor:
        ctx.index = inverse, offsets, mode
        ctx.num_rows = shadow.shape[0]
        if weights is None:
            ctx.weights = None
            out = native_pool(shadow.detach().numpy(), inverse, offsets, mode)
        else:
            ctx.weights = weights.detach().contiguous()
            # Only the gradient of the weights needs the rows again.
            if ctx.needs_input_grad[1]:
                ctx.save_for_backward(shadow)
            out = native_pool(shadow.detach().numpy(), inverse, offsets, mode, ctx.weights.numpy())
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        inverse, offsets, mode = ctx.index
        bags = gradient.contiguous().numpy()
        weights = None if ctx.weights is None else ctx.weights.numpy()
        rows = weight_gradient = None
        if ctx.needs_input_grad[0]:
            rows = torch.from_numpy(
                native_pool_backward(bags, inverse, offsets, ctx.num_rows, mode, weights)
            )
        if ctx.needs_input_grad[1]:
            (shadow,) = ctx.saved_tensors
            weight_gradient = torch.from_numpy(
                native_pool_weight_gradient(bags, shadow.detach().numpy(), inverse, offsets, mode)
            )
        return rows, weight_gradient, None, None, None
