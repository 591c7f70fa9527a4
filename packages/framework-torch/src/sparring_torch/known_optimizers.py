"""Optimizers of torch whose step over rows an update method can take.

An update method changes each row in one visit, where it is stored. It may stand in for an optimizer
of torch where it gives the same rows: the formula, the order of operations and the state of each row
are those of torch's implementation for one tensor. That is known for some classes by name, and then
tried out: a few steps over made-up rows must differ by rounding alone. So another release of torch, a build for another CPU, or a class that someone
has patched is found out, and its rows go through shadows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from sparring.adapter import hyper_from, resolve_method
from sparring.contracts import HyperParameters, UpdateMethod, UpdateRows
from sparring.errors import InvalidArgumentError
from sparring_torch.block_step import step_in_blocks
from sparring_torch.row_state import RowState
from sparring_torch.shadow_parameter import ShadowParameter

__all__ = ["FusedForm", "KnownOptimizer", "known_optimizer", "without_fused"]

_ROWS, _DIM, _STEPS = 32, 11, 4


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
    """

    def __init__(self, native: type[Optimizer], defaults: Mapping[str, Any]) -> None:
        known = _KNOWN.get(native)
        if known is None:
            raise UnknownFormError(f"no update method is known for {native.__name__}")
        self._known = known
        self._names = sorted(defaults)
        unknown = set(defaults) - {*known.taken, *known.required, *known.others, *_IRRELEVANT}
        if unknown:
            raise UnknownFormError(f"hyper-parameters {', '.join(sorted(unknown))} are unknown")
        self._methods: dict[str, UpdateMethod] = {}
        self._last: tuple[tuple[Any, ...], FusedForm | str] | None = None

    def form_of(self, group: Mapping[str, Any]) -> FusedForm | str:
        """The method for a param_group as it is now; or why there is none."""
        values = tuple(map(group.get, self._names))
        for name, value in zip(self._names, values, strict=True):
            if isinstance(value, torch.Tensor):
                # Torch computes with it in its own precision.
                return f"{name} is a tensor"
        if self._last is None or self._last[0] != values:
            try:
                self._last = values, self._form_of(group)
            except (UnknownFormError, InvalidArgumentError, TypeError, ValueError) as error:
                self._last = values, str(error)
        return self._last[1]

    def _form_of(self, group: Mapping[str, Any]) -> FusedForm:
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
        return FusedForm(method, hyper_from(method, given))


def known_optimizer(
    native: type[Optimizer],
    hyperparameters: Mapping[str, Any],
    layouts: Mapping[tuple[torch.dtype, torch.device], RowState],
) -> KnownOptimizer | str:
    """What finds update methods for steps of an optimizer; or why none is the same.

    Args:
        native: its class.
        hyperparameters: its keyword arguments.
        layouts: what `probe` found, for each dtype and device of tables.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            parameter = torch.nn.Parameter(torch.zeros(1))
            defaults = native([parameter], **hyperparameters).defaults
            known = KnownOptimizer(native, defaults)
            form = known.form_of(defaults)
            if isinstance(form, str):
                # A scheduler may bring it into the range of the method.
                return form
            for (dtype, device), layout in layouts.items():
                _check_rounding(native, hyperparameters, form, layout, dtype, device)
    except UnknownFormError as error:
        return str(error)
    return known


def _check_rounding(
    native: type[Optimizer],
    hyperparameters: Mapping[str, Any],
    form: FusedForm,
    layout: RowState,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Steps an optimizer and a method from equal rows."""
    array_dtype = np.dtype(str(dtype).removeprefix("torch."))
    state = np.array(layout.initial_row(_DIM), array_dtype)
    if form.method.state_width(_DIM) != len(state):
        raise UnknownFormError(f"{form.method.name!r} keeps another state")
    random = np.random.default_rng(1)
    start = random.standard_normal((_ROWS, _DIM)) * 10.0 ** random.uniform(-3, 1, (_ROWS, 1))
    rows = np.concatenate([start, np.tile(state, (_ROWS, 1))], 1).astype(array_dtype)
    shadow = ShadowParameter(_DIM, dtype, layout, device)
    optimizer = native([shadow.parameter], **hyperparameters)
    shadow.adopt(optimizer.state)
    for number in range(1, _STEPS + 1):
        gradients = random.standard_normal((_ROWS, _DIM)) * 10.0 ** random.uniform(-3, 1, (_ROWS, 1))
        gradients = gradients.astype(array_dtype)
        before, ours = rows.copy(), rows.copy()
        update = UpdateRows(
            np.arange(_ROWS), ours, ours[:, :_DIM], ours[:, _DIM:], gradients.copy(), number
        )
        form.method.update(update, form.hyper)
        theirs = torch.from_numpy(rows).to(device)
        shadow.load(theirs, torch.from_numpy(gradients).to(device))
        step_in_blocks(optimizer.step, [shadow], optimizer.param_groups, None)
        shadow.unload()
        rows = theirs.cpu().numpy().copy()
        if not _is_same(before, ours, rows):
            raise UnknownFormError("this build of torch rounds otherwise")


def _is_same(
    before: npt.NDArray[Any], ours: npt.NDArray[Any], theirs: npt.NDArray[Any]
) -> bool:
    """Whether rows after a step differ by no more than rounding.

    State may differ by a unit in the last place; on the CPUs that torch is built for it does not.
    Embeddings may differ by a unit of their own, and four of the step: torch takes roots from a
    library that gives the nearest number or one next to it, update methods take the nearest, and
    three more operations round.
    """
    own = np.spacing(np.maximum(np.abs(before), np.abs(theirs)))
    most = own + 4 * np.spacing(np.abs(theirs - before))
    most[:, _DIM:] = own[:, _DIM:]
    return bool((np.abs(ours - theirs) <= most).all())


def without_fused(native: type[Optimizer], hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters without torch's ``fused=True``, whose kernels take rows to lie without gaps.

    Rows of tables have gaps between them, and the classes that are known here do the same without.

    Raises:
        InvalidArgumentError: torch refuses the hyper-parameters as they are.
    """
    if native not in _KNOWN or not hyperparameters.get("fused"):
        return dict(hyperparameters)
    try:
        native([torch.nn.Parameter(torch.zeros(1, device="cpu"))], **hyperparameters)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"optimizer {native.__name__} does not accept {dict(hyperparameters)}: {error}",
            optimizer=native.__name__,
        ) from error
    return {**hyperparameters, "fused": None}
