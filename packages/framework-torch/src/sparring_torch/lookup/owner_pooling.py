"""Autograd functions for bags that are pooled by the owners of their rows.

Plan ──► split_plan: by rows │ by owners ──► look_up_bags ──► pools ──► model, loss
                                                                │
           ResourceManager.accumulate_bags(id, gradient) ◄──────┴──► owners: gradients of weights
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparring import StepContainer
from sparring.adapter import BagLookup, PooledLookup, bag_weight_gradients, look_up_bags
from sparring_torch.lookup.batch_lookup import Bags
from sparring_torch.lookup.shadow_pooling import Plan, group_bags

__all__ = ["is_pooled_by_owners", "split_plan", "pool_by_owners"]


def is_pooled_by_owners(container: StepContainer, table: str) -> bool:
    """Returns whether the owners of the rows pool the bags of a table."""
    return container.transfer(table)[0] == "pooled"


def split_plan(container: StepContainer, plan: Plan) -> tuple[Plan, Plan]:
    """Splits a plan into lookups of rows and lookups that owners pool."""
    pooled = [is_pooled_by_owners(container, table) for table, _ in plan.groups]
    return plan.part([not each for each in pooled]), plan.part(pooled)


def pool_by_owners(
    container: StepContainer, plan: Plan, bags: Bags, *, is_registered: bool
) -> dict[int, Tensor]:
    """Returns one embedding per bag, ``(num_bags, dim)``, for each feature of the plan.

    Args:
        plan: lookups in tables that owners pool.
        is_registered: whether a backward pass follows.
    """
    given, weights = [], []
    for ((table, mode), members), spans, (_, ids) in zip(
        plan.groups.items(), plan.spans, plan.requests, strict=True
    ):
        dtype = container.tables[table].computing_dtype
        offsets, own = group_bags(bags, members, spans, getattr(torch, dtype.name))
        numbers = None if own is None else own.detach().contiguous().numpy()
        trains = own is not None and own.requires_grad and is_registered
        given.append(BagLookup(table, ids, offsets, mode, numbers, trains))
        weights.append(own)
    lookups = look_up_bags(container.state, given, is_training=is_registered)
    outputs: Sequence[Tensor] = [torch.from_numpy(each.pools) for each in lookups]
    if is_registered:
        batch = _Batch(container, lookups)
        outputs = _Pools.apply(_ANCHOR, batch, outputs, *weights)  # type: ignore[no-untyped-call]
    parts: dict[int, Tensor] = {}
    for members, each in zip(plan.groups.values(), outputs, strict=True):
        parts.update(
            zip(members, each.view(len(members), bags.num_bags, each.shape[1]), strict=True)
        )
    return parts


class _Batch:
    """Registered bags; it lives until its graph is freed."""

    __slots__ = ("container", "lookups")

    def __init__(self, container: StepContainer, lookups: Sequence[PooledLookup]) -> None:
        self.container, self.lookups = container, lookups

    def take(self, gradients: Sequence[Tensor | None]) -> None:
        for each, gradient in zip(self.lookups, gradients, strict=True):
            if gradient is not None:
                assert each.shadow_id is not None
                numbers = gradient.contiguous().numpy()
                self.container.resources.accumulate_bags(each.shadow_id, numbers)

    def of_weights(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """Computes the gradients of the weights of each lookup. All ranks must call it."""
        numbers = [None if each is None else each.contiguous().numpy() for each in gradients]
        found = bag_weight_gradients(self.container.state, self.lookups, numbers)
        return [torch.from_numpy(each) for each in found]

    def __del__(self) -> None:
        # A compiler may create an object without calling __init__ while it traces.
        for each in getattr(self, "lookups", ()):
            self.container.resources.release(each.shadow_id)


# Requires a gradient, so that autograd calls backward although no input is a parameter.
_ANCHOR = torch.empty(0, requires_grad=True)


class _Pools(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        _anchor: Tensor,
        batch: _Batch,
        outputs: Sequence[Tensor],
        *weights: Tensor | None,
    ) -> tuple[Tensor, ...]:
        ctx.batch, ctx.num_weights = batch, len(weights)
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.batch.take(gradients)
        of_weights: Sequence[Tensor | None] = [None] * ctx.num_weights
        if any(ctx.needs_input_grad[3:]):
            of_weights = ctx.batch.of_weights(gradients)
        return None, None, None, *of_weights
