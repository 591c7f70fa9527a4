"""Lookups as operators of torch, for `torch.compile` and `torch.export`.

    ids, anchor ──► sparring::lookup ──► embeddings ──► model, loss
                                                          │
    gradients of rows ◄── sparring::lookup_backward ◄─────┘ ──► zero, the gradient of the anchor

The anchor is a leaf that requires a gradient. Therefore a compiler keeps the backward operator,
which passes the gradient of the embeddings to the step. There are no other side effects. A lookup
only reads rows, so a compiler may run it twice, for example in activation checkpointing, or share
its result.

Operators find a module by its name in the process. In training, each call site in a program appends a
number to the name, so that compilers do not merge two backward operators with equal arguments.
"""

from __future__ import annotations

import weakref
from itertools import count
from typing import Any

import torch
from torch import Tensor

from sparring.errors import InvalidArgumentError
from sparring_torch.lookup.row_gradients import AnchoredModule

__all__ = ["LookupModule", "module_of_site"]


_modules: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_sites = count(1)

_ANCHORS = {
    dtype: torch.zeros(1, dtype=dtype, requires_grad=True)
    for dtype in (torch.float32, torch.float64)
}
"""Anchors of lookups in training, by dtype of the embeddings."""


def _register(name: str, module: LookupModule) -> str:
    """Registers a module under `name`, with a number appended if a living module has that name."""
    for number in count(1):
        free = name if number == 1 else f"{name}@{number}"
        if _modules.setdefault(free, module) is module:
            return free
    raise AssertionError("count() does not end")


def _call_site(name: str) -> str:
    """Returns the name of a module with a number for the call site that is being traced."""
    return f"{name}#{next(_sites)}"


# `torch.compiler.assume_constant_result` does only this, but imports torch._dynamo, which takes a second.
_call_site._dynamo_marked_constant = True  # type: ignore[attr-defined]


class LookupModule(AnchoredModule):
    """A module that operators of torch find by its name in the process."""

    agent: Any
    op_name: str

    def register_for_ops(self) -> None:
        """Registers the module for operators, under the names of its tables."""
        self.op_name = _register(",".join(self.agent.table_names), self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "op_name" in state:
            self.register_for_ops()  # a copy needs a separate name

    def look_up(self, *arguments: Any) -> Tensor:
        """Looks up embeddings for arguments of an operator; registers no gradient."""
        raise NotImplementedError

    def take_gradient(self, gradient: Tensor, *arguments: Any) -> Tensor | None:
        """Takes the gradient of the result of `look_up`; returns the weights' gradient if needed."""
        raise NotImplementedError

    def op_arguments(self) -> tuple[Tensor, str]:
        """Returns the anchor and the name of this module for a lookup that is being traced."""
        dtype = self.agent.output_dtype
        # A program that is exported in evaluation mode only reads rows.
        is_training = self.training if torch.compiler.is_exporting() else self.is_training
        if is_training and torch.is_grad_enabled():
            return _ANCHORS[dtype], _call_site(self.op_name)
        return torch.zeros(1, dtype=dtype), self.op_name


def module_of_site(site: str) -> LookupModule:
    """Returns the module that an operator names.

    Raises:
        InvalidArgumentError: this process has no such module.
    """
    name = site if site in _modules else site.rpartition("#")[0] or site
    found: LookupModule | None = _modules.get(name)
    if found is None:
        raise InvalidArgumentError(
            f"this program looks up rows in {name!r}, but no module in this process has these tables; "
            "create the module and load its rows first. Modules found: "
            f"{', '.join(_modules) or 'none'}",
            table=name,
        )
    return found


_lookup = "(Tensor ids, Tensor anchor, str table, int dim) -> Tensor"
_lookup_backward = "(Tensor gradient, Tensor ids, Tensor anchor, str table) -> Tensor"
_pooled_lookup = (
    "(Tensor ids, Tensor? bags, Tensor? weights, Tensor anchor, str table, int[] places, "
    "SymInt num_bags, int dim) -> Tensor"
)
_pooled_lookup_backward = (
    "(Tensor gradient, Tensor ids, Tensor? bags, Tensor? weights, Tensor anchor, str table, "
    "int[] places, SymInt num_bags, bool are_weights_trained) -> (Tensor, Tensor)"
)


@torch.library.custom_op("sparring::lookup", mutates_args=(), schema=_lookup)
def _look_up(ids: Tensor, _anchor: Tensor, table: str, _dim: int) -> Tensor:
    return module_of_site(table).look_up(ids)


@_look_up.register_fake
def _(ids: Tensor, anchor: Tensor, _table: str, dim: int) -> Tensor:
    return ids.new_empty((*ids.shape, dim), dtype=anchor.dtype)


@torch.library.custom_op("sparring::lookup_backward", mutates_args=(), schema=_lookup_backward)
def _take_gradient(gradient: Tensor, ids: Tensor, anchor: Tensor, table: str) -> Tensor:
    module_of_site(table).take_gradient(_copy_if_shared(gradient), _copy_if_shared(ids))
    return torch.zeros_like(anchor)


@_take_gradient.register_fake
def _(_gradient: Tensor, _ids: Tensor, anchor: Tensor, _table: str) -> Tensor:
    return torch.empty_like(anchor)


@torch.library.custom_op("sparring::pooled_lookup", mutates_args=(), schema=_pooled_lookup)
def _look_up_pooled(*arguments: Any) -> Tensor:
    *batch, _anchor, table, positions, num_bags, _dim = arguments
    return module_of_site(table).look_up(*batch, positions, num_bags)


@_look_up_pooled.register_fake
def _(*arguments: Any) -> Tensor:
    ids, _bags, _weights, anchor, _table, _places, num_bags, dim = arguments
    made: Tensor = ids.new_empty((num_bags, dim), dtype=anchor.dtype)
    return made


@torch.library.custom_op(
    "sparring::pooled_lookup_backward", mutates_args=(), schema=_pooled_lookup_backward
)
def _take_pooled_gradient(*arguments: Any) -> tuple[Tensor, Tensor]:
    gradient, *batch, anchor, table, positions, num_bags, are_weights_trained = arguments
    gradient, *batch = map(_copy_if_shared, (gradient, *batch))
    of_weights = module_of_site(table).take_gradient(
        gradient, *batch, positions, num_bags, are_weights_trained
    )
    return torch.zeros_like(anchor), torch.empty(0) if of_weights is None else of_weights


@_take_pooled_gradient.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    _gradient, _ids, _bags, weights, anchor, *_, are_weights_trained = arguments
    of_weights = torch.empty_like(weights) if are_weights_trained else torch.empty(0)
    return torch.empty_like(anchor), of_weights


def _copy_if_shared(given: Any) -> Any:
    """Returns a copy that lasts until the step, because compilers reuse memory."""
    return None if given is None else given.clone(memory_format=torch.contiguous_format)


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch names it
    ids, anchor, ctx.table, _ = inputs
    ctx.save_for_backward(ids, anchor)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    ids, anchor = ctx.saved_tensors
    return None, torch.ops.sparring.lookup_backward(gradient, ids, anchor, ctx.table), None, None


def _set_up_pooled(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - as above
    ids, bags, weights, anchor, ctx.table, ctx.positions, ctx.num_bags, _ = inputs
    ctx.save_for_backward(ids, bags, weights, anchor)


def _backward_pooled(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    ids, bags, weights, anchor = ctx.saved_tensors
    are_weights_trained = weights is not None and ctx.needs_input_grad[2]
    of_anchor, of_weights = torch.ops.sparring.pooled_lookup_backward(
        gradient,
        ids,
        bags,
        weights,
        anchor,
        ctx.table,
        ctx.positions,
        ctx.num_bags,
        are_weights_trained,
    )
    of_weights = of_weights if are_weights_trained else None
    return None, None, of_weights, of_anchor, None, None, None, None


_look_up.register_autograd(_backward, setup_context=_set_up)
_look_up_pooled.register_autograd(_backward_pooled, setup_context=_set_up_pooled)
