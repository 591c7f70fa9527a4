"""Optimizers of torch whose step over rows an update method can take.

An update method changes each row in one visit, where it is stored. It may stand in for an optimizer
of torch where it gives the same rows: the formula, the order of operations and the state of each row
are those of torch's implementation for one tensor. That is known for some classes by name, and then
tried out: a few steps over made-up rows must differ by rounding alone. So another release of torch, a
build for another CPU, or a class that someone has patched is found out, and its rows go through
shadows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from sparring.adapter import is_equal_up_to_rounding, parse_hyper, resolve_method
from sparring.contracts import HyperParameters, UpdateMethod
from sparring.errors import InvalidArgumentError
from sparring_torch.optim.block_step import step_in_blocks, unhooked_step
from sparring_torch.optim.row_state import RowState
from sparring_torch.optim.shadow_parameter import ShadowParameter
from sparring_torch.optim.sparse_adam import SparseAdam

__all__ = ["FusedForm", "KnownOptimizer", "find_known_optimizer", "without_fused"]

_DIM = 11
# Values of hyper-parameters that cannot change in place.
_NUMBERS = (bool, int, float, str, type(None), np.generic)


class UnknownFormError(Exception):
    """Why no update method takes a step."""


@dataclass(frozen=True, slots=True)
class FusedForm:
    """The update method of a step, and its hyper-parameters."""

    method: UpdateMethod
    hyper: HyperParameters


@dataclass(frozen=True, slots=True)
class _Known:
    """A class of torch: where its hyper-parameters go, and what they must be.

    A hyper-parameter that neither is named here nor is irrelevant is unknown.
    """

    taken: Mapping[str, str]
    """Hyper-parameter of torch → of the method."""
    required: Mapping[str, Any]
    """Hyper-parameter of torch → the only value under which the method does the same."""
    method_of: Callable[[Mapping[str, Any]], str]
    """The method's name, from a param_group."""
    others: tuple[str, ...] = ()
    """Hyper-parameters that choose the method, or go to it in another form."""


# How an optimizer goes over its tensors, not to which result. A state's first value is in its rows.
_IRRELEVANT = {"foreach", "fused", "initial_accumulator_value"}
_PLAIN = {"maximize": False, "capturable": False, "differentiable": False}
_ADAM = {"lr": "lr", "eps": "eps", "weight_decay": "weight_decay"}
_ADAM_OTHERS = ("betas", "decoupled_weight_decay")


def _adam(group: Mapping[str, Any]) -> str:
    return "adamw" if group.get("decoupled_weight_decay") else "adam"


def _adamw(group: Mapping[str, Any]) -> str:
    if not group.get("decoupled_weight_decay", True):
        raise UnknownFormError("found decoupled_weight_decay=False")
    return "adamw"


def _sgd(group: Mapping[str, Any]) -> str:
    return "momentum" if group["momentum"] else "sgd"


_KNOWN: dict[type[Optimizer], _Known] = {
    Adam: _Known(_ADAM, {**_PLAIN, "amsgrad": False}, _adam, _ADAM_OTHERS),
    SparseAdam: _Known(
        {"lr": "lr", "eps": "eps"}, {"maximize": False}, lambda _: "sparse_adam", ("betas",)
    ),
    AdamW: _Known(_ADAM, {**_PLAIN, "amsgrad": False}, _adamw, _ADAM_OTHERS),
    Adagrad: _Known({**_ADAM, "lr_decay": "lr_decay"}, _PLAIN, lambda _: "adagrad"),
    SGD: _Known(
        {"lr": "lr", "weight_decay": "weight_decay"},
        {**_PLAIN, "dampening": 0},
        _sgd,
        ("momentum", "nesterov"),
    ),
    RMSprop: _Known(
        {**_ADAM, "alpha": "alpha"},
        {**_PLAIN, "centered": False, "momentum": 0},
        lambda _: "rmsprop",
    ),
}


class KnownOptimizer:
    """Finds the update method for steps of an optimizer of torch.

    Args:
        native: its class.
        defaults: its hyper-parameters, as it has them.
        num_states: how many elements of state the rows have for each one of the embedding.
    """

    def __init__(
        self, optimizer_class: type[Optimizer], defaults: Mapping[str, Any], num_states: int
    ) -> None:
        known = _KNOWN.get(optimizer_class)
        if known is None:
            raise UnknownFormError(f"no update method is known for {optimizer_class.__name__}")
        self._known = known
        self._num_states = num_states
        self._names = sorted(defaults)
        unknown = set(defaults) - {*known.taken, *known.required, *known.others, *_IRRELEVANT}
        if unknown:
            raise UnknownFormError(f"hyper-parameters {', '.join(sorted(unknown))} are unknown")
        self._methods: dict[str, UpdateMethod] = {}
        self._last: tuple[tuple[Any, ...], FusedForm | str] | None = None

    def find_form(self, group: Mapping[str, Any]) -> FusedForm | str:
        """The method for a param_group as it is now; or why there is none."""
        found = []
        for name in self._names:
            value = group.get(name)
            parts = value if isinstance(value, (tuple, list)) else (value,)
            for part in parts:
                if not isinstance(part, _NUMBERS):
                    # Torch computes with a tensor in the tensor's precision, and a change in place
                    # would go unseen here.
                    is_tensor = isinstance(part, torch.Tensor)
                    kind = "tensor" if is_tensor else type(part).__name__
                    return f"{name} {'has' if parts is value else 'is'} a {kind}"
            found.append(tuple(parts))
        values = tuple(found)
        if self._last is None or self._last[0] != values:
            try:
                self._last = values, self._find_form(group)
            except (UnknownFormError, InvalidArgumentError, TypeError, ValueError) as error:
                self._last = values, str(error)
        return self._last[1]

    def _find_form(self, group: Mapping[str, Any]) -> FusedForm:
        known = self._known
        for name, value in known.required.items():
            if name in group and group[name] != value:
                raise UnknownFormError(f"found {name}={group[name]}")
        name = known.method_of(group)
        given = {ours: float(group[theirs]) for theirs, ours in known.taken.items()}
        if "betas" in group:
            given["beta1"], given["beta2"] = map(float, group["betas"])
        if name == "momentum":
            given |= {"momentum": float(group["momentum"]), "nesterov": bool(group["nesterov"])}
        method = self._methods.get(name)
        if method is None:
            method = self._methods[name] = resolve_method(name)
        if method.state_width(_DIM) != self._num_states * _DIM:
            raise UnknownFormError(f"rows were made without the state of update method {name!r}")
        return FusedForm(method, parse_hyper(method, given))


def find_known_optimizer(
    optimizer_class: type[Optimizer],
    hyperparameters: Mapping[str, Any],
    layouts: Mapping[tuple[torch.dtype, torch.device], RowState],
) -> KnownOptimizer | str:
    """The known form of an optimizer; or the reason why no update method is the same.

    Args:
        native: its class.
        hyperparameters: its keyword arguments.
        layouts: what `probe` found, for each dtype and device of tables.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.device("cpu"):
            parameter = torch.nn.Parameter(torch.zeros(1))
            defaults = optimizer_class([parameter], **hyperparameters).defaults
            num_states = max(len(layout.names) for layout in layouts.values())
            known = KnownOptimizer(optimizer_class, defaults, num_states)
            form = known.find_form(defaults)
            if isinstance(form, str):
                # A scheduler may bring it into the range of the method.
                return form
            for kind, layout in layouts.items():
                _check_rounding(optimizer_class, hyperparameters, form, layout, kind)
    except UnknownFormError as error:
        return str(error)
    return known


def _check_rounding(
    optimizer_class: type[Optimizer],
    hyperparameters: Mapping[str, Any],
    form: FusedForm,
    layout: RowState,
    kind: tuple[torch.dtype, torch.device],
) -> None:
    dtype, device = kind
    shadow = ShadowParameter(_DIM, dtype, layout, device)
    optimizer = optimizer_class([shadow.parameter], **hyperparameters)
    shadow.adopt(optimizer.state)

    def step(rows: npt.NDArray[Any], gradients: npt.NDArray[Any], _: int) -> npt.NDArray[Any]:
        on_device = torch.from_numpy(rows).to(device)
        shadow.load(on_device, torch.from_numpy(gradients).to(device))
        step_in_blocks(unhooked_step(optimizer), [shadow], optimizer.param_groups, None)
        shadow.unload()
        return on_device.cpu().numpy()

    state = np.array(layout.initial_row(_DIM), str(dtype).removeprefix("torch."))
    if not is_equal_up_to_rounding(form.method, lambda _: form.hyper, step, state, _DIM):
        raise UnknownFormError("this build of torch rounds otherwise")


def without_fused(
    optimizer_class: type[Optimizer], hyperparameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Hyper-parameters without torch's ``fused=True``, whose kernels take rows to lie without gaps.

    Rows of tables have gaps between them, and the classes that are known here do the same without.

    Raises:
        InvalidArgumentError: torch refuses the hyper-parameters as they are.
    """
    if optimizer_class not in _KNOWN or not hyperparameters.get("fused"):
        return dict(hyperparameters)
    try:
        optimizer_class([torch.nn.Parameter(torch.zeros(1, device="cpu"))], **hyperparameters)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"optimizer {optimizer_class.__name__} does not accept {dict(hyperparameters)}: {error}",
            optimizer=optimizer_class.__name__,
        ) from error
    return {**hyperparameters, "fused": None}
