"""`torch.optim.SparseAdam` for rows of a step in a dense tensor."""

from __future__ import annotations

import math
from typing import Any

import torch

__all__ = ["SparseAdam", "over_rows"]


class SparseAdam(torch.optim.Optimizer):
    """Applies the formula of `torch.optim.SparseAdam` to dense gradients. Torch's class accepts
    only sparse ones.

    All rows have a gradient. Operations are in torch's order, so that they round equally. Compared to
    Adam, `eps` is added at another place.

    Args:
        params: see `torch.optim.SparseAdam`, also for the other arguments.

    Raises:
        ValueError: a hyper-parameter is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        torch.optim.SparseAdam([torch.zeros(1)], lr, betas, eps, maximize)  # checks the values
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "maximize": maximize})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Updates each parameter that has a gradient."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "exp_avg" not in state:
                    state["step"] = state.get("step", 0)
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
                state["step"] += 1
                gradient = -parameter.grad if group["maximize"] else parameter.grad
                average, square = state["exp_avg"], state["exp_avg_sq"]
                average.add_(gradient.sub(average).mul_(1 - beta1))
                square.add_(gradient.square().sub_(square).mul_(1 - beta2))
                correction1 = 1 - beta1 ** state["step"]
                correction2 = 1 - beta2 ** state["step"]
                size = group["lr"] * math.sqrt(correction2) / correction1
                parameter.add_(-size * average.div(square.sqrt().add_(group["eps"])))


def over_rows(optimizer_class: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Returns the class that updates rows like `optimizer_class` updates a weight."""
    return SparseAdam if optimizer_class is torch.optim.SparseAdam else optimizer_class
