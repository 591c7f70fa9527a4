"""Finds reasons why an embedding or its optimizer cannot be distributed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from sparring.errors import SparringError
from sparring_torch.optim.optimizer_probe import probe
from sparring_torch.optim.sparse_adam import over_rows
from sparring_torch.transpiler.replacements import Kind
from sparring_torch.transpiler.service import to_update_method

__all__ = ["RejectionFinder", "get_hyperparameters", "find_optimizer_rejection"]

_MOVES_MET_ROWS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.SGD: ("momentum", "weight_decay"),
    torch.optim.Adagrad: ("weight_decay",),
    torch.optim.SparseAdam: (),
}
"""Optimizers that do not change rows without a gradient if these hyper-parameters are 0."""


class RejectionFinder:
    """Finds why a module of a model cannot be replaced.

    Args:
        model: the complete model.
        optimizers: optimizers of its parameters.
        paths: id of a module → its paths.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        paths: Mapping[int, Sequence[str]],
    ) -> None:
        self._optimizers, self._paths = optimizers, paths
        self._holders: dict[int, list[tuple[nn.Module, str]]] = {}
        self._listed: dict[int, str] = {}
        for module in model.modules():
            for name, each in module._parameters.items():
                if each is not None:
                    self._holders.setdefault(id(each), []).append((module, name))
            for name, value in vars(module).items():
                values = list(value.values()) if isinstance(value, dict) else value
                if not name.startswith("_"):
                    for each in values if isinstance(values, (list, tuple)) else [values]:
                        self._listed[id(each)] = f"{type(module).__name__}.{name}"

    def reason(self, module: nn.Module, kind: Kind) -> str:
        """Returns why a module cannot be replaced; empty if it can."""
        if self._paths[id(module)] == [""]:
            return "it is the complete model; put it into a module"
        return (
            kind.refusal(module)
            or self._tie(module, kind)
            or self._use(module, kind)
            or self._state(module, kind)
        )

    def _tie(self, module: nn.Module, kind: Kind) -> str:
        own = {id(each) for each in module.modules()}
        for weight in kind.weights(module):
            for other, name in self._holders.get(id(weight), ()):
                if id(other) not in own:
                    where = ".".join(filter(None, [self._paths[id(other)][0], name]))
                    return f"its weight is tied: {where} is the same parameter"
        return ""

    def _use(self, module: nn.Module, kind: Kind) -> str:
        for weight in kind.weights(module):
            if id(weight) in self._listed:
                return f"{self._listed[id(weight)]} uses its weight as a matrix, but a table is not one"
        for each in module.modules():
            if id(each) in self._listed:
                where = self._listed[id(each)]
                return (
                    f"{where} contains it in a plain list or dict, or outside of torch's modules; "
                    "make that a ModuleList, a ModuleDict or an ordinary attribute"
                )
            if parametrize.is_parametrized(each):
                return "its weight is parametrized, but a table has no weight to compute"
            if each._forward_hooks or each._forward_pre_hooks or each._backward_hooks:
                return "it has hooks; register them after distribute"
        return ""

    def _state(self, module: nn.Module, kind: Kind) -> str:
        for optimizer in self._optimizers:
            for weight in kind.weights(module):
                state = optimizer.state.get(weight) or {}
                is_kept = any(each is not None for each in state.values())
                if is_kept and float(state.get("step", 1)) > 0:
                    return (
                        f"{type(optimizer).__name__} has taken steps with its weight; distribute "
                        "with an optimizer that has taken none"
                    )
        return ""


def find_optimizer_rejection(
    optimizer: torch.optim.Optimizer, place: int, *, is_lazy: bool, is_served: bool
) -> str:
    """Returns why an optimizer cannot step rows like weights; empty if it can.

    Args:
        optimizer: the optimizer with the embeddings.
        place: number of the group with the embeddings.
        is_lazy: whether rows without a gradient may stay unchanged although the optimizer changes them.
        is_served: whether rows are in a service, which supports only update methods.
    """
    optimizer_class, group = type(optimizer), optimizer.param_groups[place]
    if not is_lazy:
        needed = _MOVES_MET_ROWS.get(optimizer_class)
        found = [name for name in needed or () if group.get(name)]
        if needed is None or found:
            what = optimizer_class.__name__ + "".join(
                f" with {name}={group[name]}" for name in found
            )
            return (
                f"{what} changes rows, or their state, in steps without a gradient for them, but "
                "rows of tables change only when a batch contains their ids. Use SGD without "
                "momentum, Adagrad or SparseAdam for embeddings, without weight_decay; or set "
                "semantics='lazy' to change rows only when a batch contains them"
            )
    given = get_hyperparameters(optimizer, place)
    try:
        probe(over_rows(optimizer_class), given, torch.float32)
        known = to_update_method(over_rows(optimizer_class), given) if is_served else None
        if isinstance(known, str):
            return f"a service needs an update method, but none is equivalent: {known}"
    except SparringError as error:
        return str(error)
    return ""


def get_hyperparameters(optimizer: torch.optim.Optimizer, place: int) -> dict[str, Any]:
    """Returns keyword arguments to create an optimizer of this class with the values of a group."""
    known = inspect.signature(type(optimizer)).parameters
    group = optimizer.param_groups[place]
    return {name: each for name, each in group.items() if name in known and name != "params"}
