"""PyTorch optimizers whose steps an update method can take.

An update method updates rows where they are stored, in one pass. It replaces a torch optimizer if
it gives the same rows. This requires the formula, the order of operations and the row state of
torch's single-tensor implementation. A table in this module lists classes for which this holds. It
is also tested: the results of a few steps over generated rows may differ only by rounding. If
another release of torch, a build for another CPU, or a patched class differs, rows use shadows
instead.
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
    """Reports why no update method can take a step."""


@dataclass(frozen=True, slots=True)
class FusedForm:
    """The update method of a step, with its hyper-parameters."""

    method: UpdateMethod
    hyper: HyperParameters


@dataclass(frozen=True, slots=True)
class _Known:
    """How hyper-parameters of a class of torch map to an update method.

    A hyper-parameter that is neither listed here nor irrelevant is unknown.
    """

    taken: Mapping[str, str]
    """Hyper-parameter of torch → hyper-parameter of the method."""
    required: Mapping[str, Any]
    """Hyper-parameter of torch → the only value that the method supports."""
    method_of: Callable[[Mapping[str, Any]], str]
    """Returns the name of the method for a param_group."""
    others: tuple[str, ...] = ()
    """Hyper-parameters that select the method, or are converted for it."""


# These do not affect the result of a step. The initial accumulator is part of the row state.
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
    """Finds the update method for steps of a torch optimizer.

    Args:
        optimizer_class: class of the optimizer.
        defaults: its hyper-parameters.
        num_states: number of state elements per element of the embedding.
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
        """Returns the method for the current values of a param_group, or why there is none."""
        found = []
        for name in self._names:
            value = group.get(name)
            parts = value if isinstance(value, (tuple, list)) else (value,)
            for part in parts:
                if not isinstance(part, _NUMBERS):
                    # torch computes with a tensor in the tensor's precision, and an in-place change
                    # would not be noticed here.
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
            raise UnknownFormError(f"rows were created without the state of update method {name!r}")
        return FusedForm(method, parse_hyper(method, given))


def find_known_optimizer(
    optimizer_class: type[Optimizer],
    hyperparameters: Mapping[str, Any],
    layouts: Mapping[tuple[torch.dtype, torch.device], RowState],
) -> KnownOptimizer | str:
    """Finds the update method that replaces an optimizer; or returns why there is none.

    Args:
        optimizer_class: class of the optimizer.
        hyperparameters: its keyword arguments.
        layouts: results of `probe` for each dtype and device of tables.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.device("cpu"):
            parameter = torch.nn.Parameter(torch.zeros(1))
            defaults = optimizer_class([parameter], **hyperparameters).defaults
            num_states = max(len(layout.names) for layout in layouts.values())
            known = KnownOptimizer(optimizer_class, defaults, num_states)
            form = known.find_form(defaults)
            if isinstance(form, str):
                # A scheduler may change it to a supported value later.
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
        raise UnknownFormError("this build of torch rounds differently")


def without_fused(
    optimizer_class: type[Optimizer], hyperparameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Removes torch's ``fused=True``, whose kernels require contiguous rows.

    Rows of tables have gaps; the known classes give the same results without it.

    Raises:
        InvalidArgumentError: torch rejects the hyper-parameters.
    """
    if optimizer_class not in _KNOWN or not hyperparameters.get("fused"):
        return dict(hyperparameters)
    try:
        optimizer_class([torch.nn.Parameter(torch.zeros(1, device="cpu"))], **hyperparameters)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"optimizer {optimizer_class.__name__} does not accept {dict(hyperparameters)}: {error}; "
            "change them",
            optimizer=optimizer_class.__name__,
        ) from error
    return {**hyperparameters, "fused": None}
