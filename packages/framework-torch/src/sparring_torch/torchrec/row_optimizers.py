"""Optimizer classes of TorchRec for rows. `RowWiseAdagrad` also updates ordinary parameters."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from sparring.errors import InvalidArgumentError, UnsupportedError

__all__ = ["LAMB", "PartialRowWiseAdam", "RowWiseAdagrad"]


class RowWiseAdagrad(torch.optim.Optimizer):
    """Adagrad with one accumulator per row: Gupta et al., KDD 2021.

    For rows of tables, `apply_optimizer_in_backward` and `sparring_torch.Optimizer` use the update
    method ``rowwise_adagrad``. As an optimizer, it updates parameters ``(n, …)`` with n rows::

        g ← g + weight_decay * w;  s ← s + mean(g²);  w ← w - lr * g / (√s + eps)

    Args:
        params: parameters of at least one dimension; may be empty.
        lr: learning rate; in step t it is divided by 1 + (t - 1) * `lr_decay`.
        lr_decay: see `lr`.
        weight_decay: L2 penalty.
        initial_accumulator_value: initial value of s.
        eps: see the formula.
        maximize: whether to maximize instead of minimize.

    Raises:
        InvalidArgumentError: a number is negative.
    """

    update_method: ClassVar[str] = "rowwise_adagrad"
    """The update method for rows."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "eps": eps,
        }
        for name, value in defaults.items():
            if not value >= 0:
                raise InvalidArgumentError(
                    f"RowWiseAdagrad: {name} must be at least 0, found {value}"
                )
        # If all parameters are anchors of rows, none is left, and torch rejects an empty list.
        given = list(params) or [{"params": []}]
        super().__init__(given, {**defaults, "maximize": maximize})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Updates each parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group)
        return loss

    def _step_one(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        rows = parameter.detach().view(len(parameter), -1)
        if not state:
            state["step"] = torch.tensor(0.0)
            state["sum"] = rows.new_full((len(rows), 1), group["initial_accumulator_value"])
        state["step"] += 1
        assert parameter.grad is not None
        gradient = (-parameter.grad if group["maximize"] else parameter.grad).view_as(rows)
        if group["weight_decay"]:
            gradient = gradient + group["weight_decay"] * rows
        state["sum"] += gradient.square().mean(dim=1, keepdim=True)
        lr = group["lr"] / (1 + (float(state["step"]) - 1) * group["lr_decay"])
        rows.addcdiv_(gradient, state["sum"].sqrt().add_(group["eps"]), value=-lr)


class _RowOptimizer(torch.optim.Optimizer):
    """Represents the update method `update_method` of rows; not an optimizer of parameters."""

    update_method: ClassVar[str]

    def __init__(self, *_: Any, **__: Any) -> None:
        raise UnsupportedError(
            f"{type(self).__name__}: found ordinary parameters, but it supports only rows; give the "
            "class to apply_optimizer_in_backward, and ordinary parameters to torch.optim"
        )


class LAMB(_RowOptimizer):
    """Represents the update method ``lamb`` of rows."""

    update_method = "lamb"


class PartialRowWiseAdam(_RowOptimizer):
    """Represents the update method ``partial_rowwise_adam`` of rows."""

    update_method = "partial_rowwise_adam"
