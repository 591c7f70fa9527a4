"""The gradients of rows as torch's own functions see them: a norm, whose scaling scales them.

    backward ──► gradients of rows ─────────────────────────────────────────────► step
                   │ read                                                          ▲
                   ▼                                                               │
    summed by key over all ranks ──► anchor.grad: their norm ──► scaled in place ──┘ rows by as much

Nothing is computed until something reads `Anchor.grad`, as `torch.nn.utils.clip_grad_norm_` does. An
anchor has no elements, so no optimizer trains it; it is a parameter because that is where torch's
functions look for gradients, and for `requires_grad`.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from sparring import StepContainer
from sparring.adapter import sum_gradients
from sparring.contracts import Reduction
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.state.sharded_tensors import is_sharded, replicate

__all__ = ["Anchor", "AnchoredModule", "RowGradients", "dense_parameters"]


class _Norm(nn.Parameter):
    """A parameter without elements; its gradient is the norm of the gradients of some tables."""

    gradients: RowGradients | None = None
    position = 0
    """Its place among the norms of `gradients`."""

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> _Norm:
        made: _Norm = super().__new__(cls, torch.empty(0) if data is None else data, requires_grad)
        return made

    def __reduce_ex__(self, _protocol: Any) -> Any:
        # A copy belongs to no optimizer yet.
        return type(self), (self.data, self.requires_grad)

    @property
    def grad(self) -> Tensor | None:
        """The norm ``(1,)``; None where no gradient came since the last step.

        On several ranks all of them read it: it is the norm over all ranks.
        """
        if self.gradients is None or not self.gradients.has_pending:
            return None
        return self.gradients.norm(self.position, self.device)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if self.gradients is not None and self.gradients.has_pending:
            self.gradients.set_norm(self.position, value)


class Anchor(_Norm):
    """Stands for the rows of one module among its parameters.

    Optimizers of torch and gradient scalers that were given it do not see its gradient: that is
    for the `sparring_torch.Optimizer` of the module.
    """

    owner: weakref.ref[nn.Module] | None = None
    """The module."""

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Anchor:
        # Two dimensions: penalties that leave out biases by `dim() > 1` are rejected, too.
        data = torch.empty(0, 1) if data is None else data
        made: Anchor = super().__new__(cls, data, True)  # type: ignore[assignment]
        made.register_post_accumulate_grad_hook(_reject_penalty)  # type: ignore[no-untyped-call]
        made.requires_grad_(requires_grad)
        return made

    mesh: Any = None
    """Over which FSDP2 cut the other parameters; a norm is a `DTensor` then, as theirs are."""

    @property
    def grad(self) -> Tensor | None:
        """As `_Norm.grad`."""
        if self.gradients is None:
            return None
        if not self.gradients.has_pending:
            if sys._getframe(1).f_code in _ZERO_GRAD:
                self.gradients.drop(())
            return None
        reader = _find_reader()
        if _is_optimizer(reader):
            return None
        _check_clipping(reader)
        return self.gradients.norm(self.position, self.device)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if self.gradients is None or _is_optimizer(_find_reader()):
            return
        if self.gradients.has_pending:
            self.gradients.set_norm(self.position, value)
        elif value is None:
            self.gradients.drop(())


class AnchoredModule(nn.Module):
    """A module with rows, for which a parameter stands: `anchor`, which is not in `state_dict`."""

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
        """Whether gradients train the rows: never after ``requires_grad_(False)``.

        As in torch, ``eval()`` does not stop training. A module without an optimizer, as one that
        is only asked, takes no gradients in evaluation mode.
        """
        anchor = self._parameters["anchor"]
        if anchor is None or not anchor.requires_grad:
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
        container: where the tables live.
        anchors: of the modules.
        tables: names of the tables of each anchor; a table that several have counts for the first.
    """

    def __init__(
        self, container: StepContainer, anchors: Sequence[Anchor], tables: Sequence[Sequence[str]]
    ) -> None:
        self._container = container
        self._resources = container.resources
        self._anchor_of_table = {
            name: position
            for position in reversed(range(len(anchors)))
            for name in tables[position]
        }
        self.parameters = [_Norm(requires_grad=True) for _ in anchors]
        """One for each anchor: gradient scalers find them in the optimizer's `param_groups`."""
        for position, (anchor, own) in enumerate(zip(anchors, self.parameters, strict=True)):
            anchor.gradients = own.gradients = self
            anchor.position = own.position = position
        self._num_seen = self._resources.num_gradients
        self._has_stepped = False
        """Whether a step took gradients, and no `zero_grad` followed."""
        self._mesh = next((each.mesh for each in anchors if each.mesh is not None), None)
        self._norms: list[Tensor | None] = []
        self._before: list[float] = []

    @property
    def has_pending(self) -> bool:
        """Whether a gradient came since the last step, or a norm is to be given back."""
        return bool(self._norms) or self._resources.num_gradients != self._num_seen

    @property
    def has_read_norms(self) -> bool:
        """Whether a norm was, and may have been scaled since."""
        return bool(self._norms)

    def norm(self, position: int, device: torch.device) -> Tensor | None:
        """The norm ``(1,)`` of the gradients of an anchor's tables; the same tensor until more come.

        None where they were dropped. All ranks call it.
        """
        if not self._norms or self._resources.num_gradients != self._num_seen:
            self._compute_norms()
        norm = self._norms[position]
        if norm is not None and norm.device != device and device.type != "meta":
            norm = self._norms[position] = norm.to(device)
        if norm is not None and self._mesh is not None and not is_sharded(norm):
            norm = self._norms[position] = replicate(norm, self._mesh)
        return norm

    def set_norm(self, position: int, value: Tensor | None) -> None:
        """Scales the gradients to another norm; None drops them."""
        if value is not None:
            self.norm(position, value.device)
            self._norms[position] = value
            return
        self._has_stepped = False
        if self._norms:
            self._norms[position] = None
        for name in [name for name, own in self._anchor_of_table.items() if own == position]:
            self._resources.drop(name)

    def scale(self, factor: float = 1.0) -> None:
        """Scales the gradients as their norms were, and by `factor`, for the step.

        All ranks call it with an equal factor.
        """
        if factor != 1.0 and self.has_pending:
            self._compute_norms()
        factors = [
            factor * (norm.item() / before if norm is not None and before else 1.0)
            for norm, before in zip(self._norms, self._before, strict=True)
        ]
        for entry, each in self._resources.summed.items():
            name = self._container.entry(entry).table_name
            if (
                name in self._anchor_of_table
                and factors
                and factors[self._anchor_of_table[name]] != 1.0
            ):
                each.gradients *= factors[self._anchor_of_table[name]]
        self.forget()

    def check_cleared(self) -> bool:
        """Returns whether there are gradients for a step.

        Raises:
            InvalidArgumentError: if there was no `zero_grad` since a step that had gradients: torch would
                use them again.
        """
        has_gradients = any(map(self._resources.has_gradient, self._anchor_of_table))
        if not self._has_stepped:
            return has_gradients
        found = "gradients of a backward()" if has_gradients else "no gradient"
        use = "add to the new ones" if has_gradients else "apply again"
        raise InvalidArgumentError(
            f"step: found {found} after the last step, and no zero_grad() in between. torch has the "
            f"gradients of the last step still, which it would {use}; those of rows are not kept. Call "
            "optimizer.zero_grad() before the first backward() of each step"
        )

    def count_step(self, *, has_gradients: bool) -> None:
        """Notes that a step has taken all gradients so far."""
        self._has_stepped = has_gradients

    def drop(self, tables: Iterable[str]) -> None:
        """Drops the gradients since the last step."""
        self._has_stepped = False
        for name in tables:
            self._resources.drop(name)
        self.forget()

    def forget(self) -> None:
        """Forgets the norms: a step takes the gradients."""
        self._norms, self._before = [], []
        self._num_seen = self._resources.num_gradients

    def _compute_norms(self) -> None:
        """Adds up all gradients so far, and computes their norms again."""
        self.scale()
        container = self._container
        summed = sum_gradients(container.state)
        squares = np.zeros(len(self.parameters))
        for entry, each in summed.items():
            name = container.entry(entry).table_name
            # A table of another module: the step says that it has no optimizer.
            if name in self._anchor_of_table and len(each.keys):
                values = torch.as_tensor(each.gradients)
                norm = torch.linalg.vector_norm(values, dtype=torch.float64)
                squares[self._anchor_of_table[name]] += norm.item() ** 2
        world_size = container.collective.world_size
        if world_size > 1:
            squares = container.collective.all_reduce(squares, Reduction.SUM)
        norms = np.sqrt(squares)
        if container.state.reduction is Reduction.MEAN:
            norms /= world_size
        is_double = any(
            container.tables[name].computing_dtype == np.float64 for name in self._anchor_of_table
        )
        dtype = torch.float64 if is_double else torch.float32
        made = [torch.tensor([each], dtype=dtype) for each in norms]
        self._norms, self._before = [*made], [each.item() for each in made]


def dense_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and parameters of a module, without the anchors of its tables."""
    for name, parameter in module.named_parameters():
        if not isinstance(parameter, Anchor):
            yield name, parameter


def _reject_penalty(anchor: Anchor) -> NoReturn:
    """Called in a backward pass whose loss contains an anchor: lookups give it no gradient."""
    owner: Any = None if anchor.owner is None else anchor.owner()
    names = [] if owner is None else owner.agent.table_names
    raise UnsupportedError(
        f"backward: the loss contains all parameters of the model, as a penalty does, but the parameter "
        f"that stands for the rows of table {', '.join(map(repr, names)) or 'unknown'} has no elements, "
        "so rows would be left out. Compute the penalty over sparring_torch.dense_parameters(model) and "
        "over the looked-up embeddings, or give rows a weight decay: "
        "sparring_torch.Optimizer(model, torch.optim.AdamW, weight_decay=0.01)",
        tables=names,
    )


def _find_reader() -> FrameType:
    """The function that reads or sets `Anchor.grad`."""
    frame = sys._getframe(2)
    while frame.f_code.co_name in ("<listcomp>", "<dictcomp>", "<genexpr>"):
        assert frame.f_back is not None
        frame = frame.f_back
    return frame


def _is_optimizer(reader: FrameType) -> bool:
    """Whether it is a method of an optimizer or a gradient scaler."""
    if reader.f_globals.get("__name__", "").startswith("torch.optim."):
        return True  # quicker than a look at its variables
    owner = reader.f_locals.get("self")
    return isinstance(owner, (torch.optim.Optimizer, torch.amp.GradScaler))


def _check_clipping(reader: FrameType) -> None:
    if reader.f_code is _CLIP_BY_VALUE:
        raise UnsupportedError(
            "clip_grad_value_ clips elements, and of the gradients of rows it sees the norm alone; "
            "clip by the norm, or give ordinary parameters here and an update method its clip_value"
        )
    if reader.f_code is _CLIP_BY_NORM and float(reader.f_locals["norm_type"]) != 2.0:
        raise UnsupportedError(
            f"clip_grad_norm_ with norm_type={reader.f_locals['norm_type']}: the gradients of rows "
            "have a norm of type 2 only"
        )


# Also of an optimizer of ordinary parameters that was given `model.parameters()`.
_ZERO_GRAD = {
    inspect.unwrap(each.zero_grad).__code__ for each in (nn.Module, torch.optim.Optimizer)
}
_CLIP_BY_VALUE = inspect.unwrap(torch.nn.utils.clip_grad_value_).__code__
_CLIP_BY_NORM = inspect.unwrap(torch.nn.utils.clip_grad_norm_).__code__
