"""`KeyedOptimizerWrapper`: an optimizer of torch whose state has the names of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sparring.errors import InvalidArgumentError
from sparring_torch.row_gradients import Anchor

__all__ = ["KeyedOptimizerWrapper"]


class KeyedOptimizerWrapper(torch.optim.Optimizer):
    """Ordinary parameters by name, and the optimizer that a function makes for them.

    Args:
        params: name → parameter, as ``dict(model.named_parameters())``; what stands for rows is
            left out.
        optim_factory: makes an optimizer of a list of parameters.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        optim_factory: Callable[[list[Tensor]], torch.optim.Optimizer],
    ) -> None:
        self.params = {name: each for name, each in params.items() if not isinstance(each, Anchor)}
        self._inner = optim_factory(list(self.params.values()))
        super().__init__(self._inner.param_groups, self._inner.defaults)
        self._share()

    def _share(self) -> None:
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def step(self, closure: Any = None) -> Any:
        """As the optimizer's."""
        return self._inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the optimizer's."""
        self._inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """As the optimizer's, with names in place of numbers."""
        names, plain = self._names(), self._inner.state_dict()
        return {
            "state": {names[number]: each for number, each in plain["state"].items()},
            "param_groups": [
                {**group, "params": [names[number] for number in group["params"]]}
                for group in plain["param_groups"]
            ],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave.

        Raises:
            InvalidArgumentError: it is of other parameters; nothing is changed.
        """
        numbers = {name: number for number, name in enumerate(self._names())}
        found = {name for group in state_dict["param_groups"] for name in group["params"]}
        if found != numbers.keys():
            raise InvalidArgumentError(
                f"this state_dict is of parameters {sorted(found)}, the optimizer of "
                f"{sorted(numbers)}; make it for the same parameters"
            )
        self._inner.load_state_dict(
            {
                "state": {numbers[name]: each for name, each in state_dict["state"].items()},
                "param_groups": [
                    {**group, "params": [numbers[name] for name in group["params"]]}
                    for group in state_dict["param_groups"]
                ],
            }
        )
        self._share()

    def _names(self) -> list[str]:
        """Names in the order in which the optimizer numbers its parameters."""
        by_id = {id(each): name for name, each in self.params.items()}
        return [by_id[id(each)] for group in self.param_groups for each in group["params"]]
