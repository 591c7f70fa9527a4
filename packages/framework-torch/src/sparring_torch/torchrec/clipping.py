"""`GradientClippingOptimizer`: clips gradients before each step of another optimizer."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch import Tensor

from sparring.errors import InvalidArgumentError
from sparring_torch.optim.combined_optimizer import OptimizerOfParts

__all__ = ["GradientClipping", "GradientClippingOptimizer"]


class GradientClipping(Enum):
    """How gradients are clipped."""

    NORM = "norm"
    VALUE = "value"
    NONE = "none"


class GradientClippingOptimizer(OptimizerOfParts):
    """Clips gradients before each step of an optimizer.

    The rows of a `sparring_torch.Optimizer` are included, over all ranks. Rows that are
    updated in backward have no gradients at this point and are not clipped.

    Args:
        optimizer: the optimizer of the parameters and rows.
        clipping: clip by the norm, by value, or not at all.
        max_gradient: maximum norm or value.
        norm_type: type of the norm.

    Raises:
        InvalidArgumentError: `max_gradient` is not positive.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        clipping: GradientClipping = GradientClipping.NONE,
        max_gradient: float = 0.1,
        norm_type: float = 2.0,
    ) -> None:
        if not max_gradient > 0:
            raise InvalidArgumentError(
                f"GradientClippingOptimizer: max_gradient must be positive, found {max_gradient}"
            )
        self._parts = {"optimizer": optimizer}
        self._clipping, self._most, self._norm_type = clipping, max_gradient, norm_type
        self.defaults = optimizer.defaults

    # Read from the optimizer at each use, because schedulers and loading replace them.
    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Groups of the optimizer."""
        return self._parts["optimizer"].param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """State of the optimizer."""
        return self._parts["optimizer"].state

    def step(self, closure: Any = None) -> Any:
        """Clips the gradients, and steps the optimizer."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        parameters: list[Tensor] = [each for group in self.param_groups for each in group["params"]]
        if self._clipping is GradientClipping.NORM:
            torch.nn.utils.clip_grad_norm_(parameters, self._most, self._norm_type)
        elif self._clipping is GradientClipping.VALUE:
            torch.nn.utils.clip_grad_value_(parameters, self._most)
        self._parts["optimizer"].step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """`state_dict` of the optimizer."""
        return self._parts["optimizer"].state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Loads the state of the optimizer."""
        self._parts["optimizer"].load_state_dict(state_dict)
