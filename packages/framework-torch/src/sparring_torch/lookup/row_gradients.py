"""Lets functions of torch read and scale the norm of row gradients, for example to clip it.

    backward ──► gradients of rows ─────────────────────────────────────────────► step
                   │ read                                                          ▲
                   ▼                                                               │
    summed by key over all ranks ──► anchor.grad: their norm ──► scaled in place ──┘ same factor

The norm is a `GradientNorm`, which rejects operations that need the elements.

Nothing is computed until something reads `Anchor.grad`, for example `torch.nn.utils.clip_grad_norm_`.
An anchor has no elements, so no optimizer trains it. It is a parameter because functions of torch
look for gradients and `requires_grad` in parameters.

The file is long because an anchor, its module and its gradients depend on each other.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partialmethod
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from sparring import StepContainer
from sparring.adapter import sum_gradients
from sparring.contracts import Reduction
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.lookup.gradient_norm import GradientNorm
from sparring_torch.state.row_values import RowsValue, is_change, is_reference, rows_of
from sparring_torch.state.sharded_tensors import is_sharded, replicate

__all__ = ["Anchor", "AnchoredModule", "RowGradients", "dense_parameters", "reject_hook"]


class _Norm(nn.Parameter):
    """A parameter without elements whose gradient is the norm of the gradients of some tables."""

    gradients: RowGradients | None = None
    position = 0
    """Position among the norms of `gradients`."""

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> _Norm:
        made: _Norm = super().__new__(cls, torch.empty(0) if data is None else data, requires_grad)
        return made

    def __reduce_ex__(self, _protocol: Any) -> Any:
        # A copy belongs to no optimizer yet.
        return type(self), (Tensor.detach(self), self.requires_grad)

    def reject_change(self, name: str, *_: object, **__: object) -> NoReturn:
        """Raises the error of the method `name`, which would change the parameter."""
        _reject_value(name)

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        """Raises, because only the gradients of rows are in an optimizer's `param_groups`."""
        _reject_value("data")

    def register_hook(self, hook: object) -> NoReturn:
        """Raises, because no gradient of rows arrives at the parameter."""
        reject_hook("register_hook")

    def register_post_accumulate_grad_hook(self, hook: object) -> NoReturn:
        """Raises, because no gradient of rows arrives at the parameter."""
        reject_hook("register_post_accumulate_grad_hook")

    @property
    def grad(self) -> Tensor | None:
        """The norm ``(1,)`` over all ranks, as a `GradientNorm`; None if there is no gradient.

        All ranks must read it.
        """
        if self.gradients is None or not self.gradients.has_pending:
            return None
        return self.gradients.norm(self.position, self.device)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        self._set_grad(value)

    def _set_grad(self, value: Tensor | None) -> None:
        if self.gradients is None or (value is not None and not value.numel()):
            return
        if self.gradients.has_pending:
            self.gradients.set_norm(self.position, value)
        elif value is not None:
            _reject_grad()


def _reject_value(name: str) -> NoReturn:
    raise UnsupportedError(
        f"{name}: found a parameter in the param_groups of an Optimizer of rows, which represents only "
        "their gradients, so the change would not reach the rows. Use weight_decay or another "
        "hyper-parameter, or change model.parameters(), where averages of rows work",
        operation=name,
    )


for _name in filter(is_change, dir(Tensor)):
    setattr(_Norm, _name, partialmethod(_Norm.reject_change, _name))


class Anchor(_Norm):
    """Represents the rows of one module among the module's parameters.

    Optimizers and gradient scalers of torch that receive it see no gradient, because the gradient
    belongs to the module's `sparring_torch.Optimizer`.
    """

    owner: weakref.ref[nn.Module] | None = None
    """The module that contains the rows."""

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Anchor:
        # Two dimensions, so that penalties which skip biases (`dim() > 1`) are rejected, too.
        data = torch.empty(0, 1) if data is None else data
        made: Anchor = super().__new__(cls, data, True)  # type: ignore[assignment]
        Tensor.register_post_accumulate_grad_hook(made, _reject_penalty)  # type: ignore[no-untyped-call]
        made.requires_grad_(requires_grad)
        return made

    mesh: Any = None
    """Device mesh of the parameters that FSDP2 shards; norms are then `DTensor`s, like theirs."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = _CopiedAnchor(Tensor.detach(self).clone(), self.requires_grad)
        return memo[id(self)]

    # -- the rows as a value, for averages and copies of models

    represents_rows = True
    """Whether `RowsValue` replaces the parameter by its value."""

    def detach(self) -> Tensor:
        """Returns the rows of the module as a value."""
        return rows_of(self, None if self.owner is None else self.owner())

    @property
    def data(self) -> Tensor:
        """The rows of the module as a value."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, RowsValue):
            if value.numel():
                raise UnsupportedError(
                    f"data: found a tensor {tuple(value.shape)} for the parameter that represents rows; "
                    "write rows with StepContainer.assign, or copy them with copy_ from the parameter of "
                    "another model"
                )
            Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        elif not is_reference(value):
            self.detach().copy_(value)
        elif value.target.identity is not getattr(self.detach(), "target", value.target).identity:
            raise UnsupportedError(
                "data: found the rows of another module, which torch would share from now on; copy them "
                "with parameter.data.copy_(other.data), and swap rows with a copy from other.data.clone()"
            )

    def copy_(self, other: Any, non_blocking: bool = False) -> Any:
        """See `RowsValue`."""
        self.detach().copy_(other, non_blocking)
        return self

    def lerp_(self, end: Any, weight: Any) -> Any:
        """See `RowsValue`."""
        self.detach().lerp_(end, weight)
        return self

    @property
    def grad(self) -> Tensor | None:
        """Same as `_Norm.grad`."""
        if self.gradients is None:
            return None
        if not self.gradients.has_pending:
            if sys._getframe(1).f_code in _ZERO_GRAD:
                self.gradients.drop(())
            return None
        if _is_optimizer(_find_reader()):
            return None
        return self.gradients.norm(self.position, self.device)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if self.gradients is None or _is_optimizer(_find_reader()):
            return
        if value is None and not self.gradients.has_pending:
            self.gradients.drop(())
        else:
            self._set_grad(value)


def _change(name: str) -> Any:
    def change(self: Anchor, *arguments: Any, **named: Any) -> Any:
        # Directly, because functions of torch.nn.init disable its dispatch for subclasses.
        function, value = getattr(Tensor, name), self.detach()
        return RowsValue.__torch_function__(function, (), (value, *arguments), named)

    return change


# Like `copy_`; the value raises for operations that are no average.
for _name in filter(is_change, dir(Tensor)):
    if _name not in vars(Anchor):
        setattr(Anchor, _name, _change(_name))


class _CopiedAnchor(Anchor):
    """The anchor of a copied module, which functions over lists of parameters average, such as
    `torch._foreach_lerp_`. Anchors of other modules do not pay for this check."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        # Compilers do not support names of functions.
        if not torch.compiler.is_compiling() and func.__name__.startswith("_foreach_"):
            return RowsValue.__torch_function__(func, types, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class AnchoredModule(nn.Module):
    """A module with rows, which `anchor` represents; `anchor` is not part of `state_dict`."""

    anchor: Anchor

    def __init__(self) -> None:
        super().__init__()
        self.anchor = Anchor()
        self.anchor.owner = weakref.ref(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.anchor.owner = weakref.ref(self)  # a copy is another module

    @property
    def is_training(self) -> bool:
        """Whether gradients train the rows; False after ``requires_grad_(False)``.

        As in torch, ``eval()`` does not stop training. A module without an optimizer, which only
        reads rows, takes no gradients in evaluation mode.
        """
        anchor = self._parameters["anchor"]
        if anchor is not None and not isinstance(anchor, Anchor):
            reject_foreign(anchor)
        if anchor is None or not anchor.requires_grad:
            return False
        # Frozen through the optimizer's param_groups, as Lightning's toggle_optimizer does.
        gradients = anchor.gradients
        if gradients is not None and not gradients.parameters[anchor.position].requires_grad:
            return False
        return self.training or self.has_optimizer

    @property
    def has_optimizer(self) -> bool:
        """Whether an optimizer takes the gradients of the rows."""
        return False

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[prefix + "anchor"]

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: Any, *rest: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *rest)
        missing[:] = [key for key in missing if key != prefix + "anchor"]


class RowGradients:
    """Gradients of the tables of one `Optimizer` between backward and step.

    Args:
        container: the container of the tables.
        anchors: anchors of the modules.
        tables: table names of each anchor; a table of several anchors belongs to the first.
    """

    def __init__(
        self, container: StepContainer, anchors: Sequence[Anchor], tables: Sequence[Sequence[str]]
    ) -> None:
        for each in anchors:
            if not isinstance(each, Anchor):
                reject_foreign(each)
        self._container = container
        self._resources = container.resources
        self._anchor_of_table = {
            name: position
            for position in reversed(range(len(anchors)))
            for name in tables[position]
        }
        self.tables = [
            {name for name, own in self._anchor_of_table.items() if own == position}
            for position in range(len(anchors))
        ]
        """Tables of each anchor."""
        self.parameters = [_Norm(requires_grad=True) for _ in anchors]
        """One per anchor, for the optimizer's `param_groups`, where gradient scalers find them."""
        for position, (anchor, own) in enumerate(zip(anchors, self.parameters, strict=True)):
            anchor.gradients = own.gradients = self
            anchor.position = own.position = position
        self.num_seen = self._resources.num_gradients
        """Number of gradients when norms were computed, or at the last step."""
        self._has_stepped = False
        """Whether a step took gradients and `zero_grad` has not been called since then."""
        self._mesh = next((each.mesh for each in anchors if each.mesh is not None), None)
        self._norms: list[GradientNorm | None] = []
        self._before: list[float] = []

    @property
    def has_pending(self) -> bool:
        """Whether gradients arrived since the last step, or norms were read and not yet applied."""
        return bool(self._norms) or self._resources.num_gradients != self.num_seen

    @property
    def has_read_norms(self) -> bool:
        """Whether norms were read since the last step; the reader may have scaled them."""
        return bool(self._norms)

    def is_current(self, norm: GradientNorm) -> bool:
        """Whether changes of a norm that was read still reach the gradients of the next step."""
        is_fresh = bool(self._norms) and self._resources.num_gradients == self.num_seen
        return is_fresh and self._norms[norm.position] is norm

    def norm(self, position: int, device: torch.device) -> GradientNorm | None:
        """Returns the norm ``(1,)`` of the gradients of an anchor's tables, or None if they were dropped.

        It is the same tensor until more gradients arrive. All ranks must call it.
        """
        if not self._norms or self._resources.num_gradients != self.num_seen:
            self._compute_norms()
        norm = self._norms[position]
        if norm is None:
            return None
        value = norm.value
        if value.device != device and device.type != "meta":
            value = value.to(device)
        if self._mesh is not None and not is_sharded(value):
            value = replicate(value, self._mesh)
        if value is not norm.value:
            norm = self._norms[position] = GradientNorm(value, self, position)
        return norm

    def set_norm(self, position: int, value: Tensor | None) -> None:
        """Scales the gradients so that they have the given norm; None drops them."""
        if value is not None:
            if not (
                isinstance(value, GradientNorm)
                and value.source is self
                and value.position == position
            ):
                raise UnsupportedError(
                    f"found a {type(value).__name__} for the gradient of rows, of which torch has only "
                    "the norm; assign a product of parameter.grad with a number, or None"
                )
            if not self.is_current(value):
                # The norm of other gradients, such as those of an earlier batch, does not replace them.
                if (
                    value.num_seen != self.num_seen
                    or self.num_seen != self._resources.num_gradients
                ):
                    _reject_grad()
                self.norm(position, value.device)
                self._norms[position] = GradientNorm(value.value, self, position)
            return
        self._has_stepped = False
        if self._norms:
            self._norms[position] = None
        for name in [name for name, own in self._anchor_of_table.items() if own == position]:
            self._resources.drop(name)

    def scale(self, factor: float = 1.0) -> None:
        """Applies the scaling of the norms, and `factor`, to the gradients for the step.

        All ranks must call it with the same factor.
        """
        if factor != 1.0 and self.has_pending:
            self._compute_norms()
        factors = [factor * self._factor(position) for position in range(len(self._norms))]
        for entry, each in self._resources.summed.items():
            name = self._container.entry(entry).table_name
            if (
                name in self._anchor_of_table
                and factors
                and factors[self._anchor_of_table[name]] != 1.0
            ):
                each.gradients *= factors[self._anchor_of_table[name]]
        self.forget()

    def _factor(self, position: int) -> float:
        """Returns by how much the norm of an anchor was scaled since it was computed."""
        norm, before = self._norms[position], self._before[position]
        return float(norm.value.item() / before) if norm is not None and before else 1.0

    def clamp(self, position: int, low: float, high: float) -> float:
        """Clamps each element of the gradients of an anchor's tables, and returns their new norm.

        All ranks must call it with the same bounds.
        """
        factor, world_size = self._factor(position), self._container.collective.world_size
        if self._container.state.reduction is Reduction.MEAN:
            low, high = low * world_size, high * world_size
        for gradients in self._gradients_of(position):
            gradients.mul_(factor).clamp_(low, high)
        self._before[position] = self._reduce_norms([position], 2.0)[0]
        return self._before[position]

    def norm_of_order(self, position: int, order: float) -> float:
        """Returns the norm of another order, over all ranks; all ranks must call it."""
        return self._factor(position) * self._reduce_norms([position], order)[0]

    def check_cleared(self) -> bool:
        """Returns whether there are gradients for a step.

        Raises:
            InvalidArgumentError: `zero_grad` was not called since a step that had gradients; torch
                would use these again.
        """
        has_gradients = any(map(self._resources.has_gradient, self._anchor_of_table))
        if not self._has_stepped:
            return has_gradients
        found = "gradients of a backward()" if has_gradients else "no gradient"
        use = "add to the new ones" if has_gradients else "apply again"
        raise InvalidArgumentError(
            f"step: found {found} after the last step, but no zero_grad() in between. torch still "
            f"has the gradients of the last step, which it would {use}, but gradients of rows are "
            "not kept. Call optimizer.zero_grad() before the first backward() of each step"
        )

    def count_step(self, *, has_gradients: bool) -> None:
        """Records that a step has taken all gradients."""
        self._has_stepped = has_gradients

    def drop(self, tables: Iterable[str]) -> None:
        """Drops the gradients since the last step."""
        self._has_stepped = False
        for name in tables:
            self._resources.drop(name)
        self.forget()

    def forget(self) -> None:
        """Forgets the norms, because a step takes the gradients."""
        self._norms, self._before = [], []
        self.num_seen = self._resources.num_gradients

    def _compute_norms(self) -> None:
        """Sums all gradients by key and computes their norms."""
        self.scale()
        sum_gradients(self._container.state)
        computed = self._container.tables
        is_double = any(
            computed[name].computing_dtype == np.float64 for name in self._anchor_of_table
        )
        dtype = torch.float64 if is_double else torch.float32
        norms = self._reduce_norms(range(len(self.parameters)), 2.0)
        values = [torch.tensor([each], dtype=dtype) for each in norms]
        self._norms = [GradientNorm(each, self, place) for place, each in enumerate(values)]
        self._before = [each.item() for each in values]

    def _gradients_of(self, position: int) -> Iterator[Tensor]:
        """Yields the summed gradients ``(u, dim)`` of an anchor's tables on this rank."""
        for entry, each in self._resources.summed.items():
            name = self._container.entry(entry).table_name
            # For tables of other modules, the step reports the missing optimizer.
            if self._anchor_of_table.get(name) == position and len(each.keys):
                yield torch.as_tensor(each.gradients)

    def _reduce_norms(self, positions: Sequence[int], order: float) -> list[float]:
        """Returns the norms of the summed gradients of anchors, over all ranks."""
        container, is_max = self._container, order == float("inf")
        parts = np.zeros(len(positions))
        for place, position in enumerate(positions):
            for gradients in self._gradients_of(position):
                norm = torch.linalg.vector_norm(gradients, order, dtype=torch.float64).item()
                parts[place] = (
                    np.maximum(parts[place], norm) if is_max else parts[place] + norm**order
                )
        world_size = container.collective.world_size
        if world_size > 1:
            parts = container.collective.all_reduce(
                parts, Reduction.MAX if is_max else Reduction.SUM
            )
        norms = parts if is_max else parts ** (1.0 / order)
        if container.state.reduction is Reduction.MEAN:
            norms = norms / world_size
        return [float(each) for each in norms]


def dense_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yields names and parameters of a module, without the anchors of its tables.

    Args:
        module: a module, which may contain tables.

    Examples:
        >>> import torch
        >>> from sparring_torch import Embedding, dense_parameters
        >>> model = torch.nn.Sequential(Embedding(4, name="items"), torch.nn.Linear(4, 1))
        >>> [name for name, _ in dense_parameters(model)]
        ['1.weight', '1.bias']
    """
    for name, parameter in module.named_parameters():
        if not isinstance(parameter, Anchor):
            yield name, parameter


def _reject_penalty(anchor: Anchor) -> NoReturn:
    """Called in a backward pass if the loss contains an anchor; lookups give it no gradient."""
    owner: Any = None if anchor.owner is None else anchor.owner()
    names = [] if owner is None else owner.agent.table_names
    raise UnsupportedError(
        f"backward: the loss contains all parameters of the model, for example in a penalty, but the "
        f"parameter that represents the rows of table {', '.join(map(repr, names)) or 'unknown'} has "
        "no elements, so the penalty would not include the rows. Compute it over "
        "sparring_torch.dense_parameters(model) and the looked-up embeddings, or use weight decay for "
        "the rows: sparring_torch.Optimizer(model, torch.optim.AdamW, weight_decay=0.01)",
        tables=names,
    )


def _find_reader() -> FrameType:
    """Returns the frame of the function that reads or sets `Anchor.grad`."""
    frame = sys._getframe(2)
    while frame.f_code.co_name in ("<listcomp>", "<dictcomp>", "<genexpr>"):
        assert frame.f_back is not None
        frame = frame.f_back
    return frame


def _is_optimizer(reader: FrameType) -> bool:
    """Whether the frame is in a method of an optimizer or a gradient scaler."""
    if reader.f_globals.get("__name__", "").startswith("torch.optim."):
        return True  # faster than reading its local variables
    owner = reader.f_locals.get("self")
    return isinstance(owner, (torch.optim.Optimizer, torch.amp.GradScaler))


def _reject_grad() -> NoReturn:
    raise UnsupportedError(
        "found a gradient of rows that is not a product of the current parameter.grad with a number; "
        "saved gradients of rows cannot be assigned, because torch has only their norm. Call backward() "
        "again for the batches of the step"
    )


def reject_foreign(parameter: object) -> NoReturn:
    """Raises the error of a module whose anchor was replaced, for example by FSDP2.

    Args:
        parameter: what was found in its place.
    """
    raise UnsupportedError(
        f"found a {type(parameter).__name__} for the parameter that represents rows: fully_shard or "
        "functional_call has replaced it, but rows and their gradients stay with the original. Call the "
        "model itself; for FSDP2, wrap it in sparring_torch.DistributedModelParallel(model, "
        "dense='fsdp2'), or pass fully_shard the ignored_params "
        "{p for p in model.parameters() if not p.numel()}"
    )


def reject_hook(name: str, *_: object) -> NoReturn:
    """Raises the error of a method `name` that registers a hook at a parameter of rows."""
    raise UnsupportedError(
        f"{name}: found a parameter that represents rows, at which no gradient arrives, so the hook "
        "would never run. Register it on sparring_torch.dense_parameters(model) and on the looked-up "
        "embeddings, or pass sparring_torch.Optimizer a subclass of your optimizer whose step() "
        "changes the gradients of the rows",
        operation=name,
    )


# They are also found if an optimizer of ordinary parameters received `model.parameters()`.
_ZERO_GRAD = {
    inspect.unwrap(each.zero_grad).__code__ for each in (nn.Module, torch.optim.Optimizer)
}
