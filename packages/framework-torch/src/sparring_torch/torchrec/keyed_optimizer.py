"""`KeyedOptimizer` and `KeyedOptimizerWrapper`: optimizers whose state has the names of parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from sparring.errors import InvalidArgumentError
from sparring_torch.lookup.row_gradients import Anchor

__all__ = ["KeyedOptimizer", "KeyedOptimizerWrapper"]


class KeyedOptimizer(torch.optim.Optimizer):
    """Base of optimizers of ordinary parameters by name; a subclass defines `step`.

    Args:
        params: name → parameter; anchors of rows are left out.
        state: parameter → its state; kept, not copied.
        param_groups: as torch has them.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        state: Mapping[Any, Any],
        param_groups: Collection[Mapping[str, Any]],
    ) -> None:
        self.params = {name: each for name, each in params.items() if not isinstance(each, Anchor)}
        super().__init__([dict(each) for each in param_groups] or [{"params": []}], {})
        self.state = state  # type: ignore[assignment]

    def step(self, closure: Any = None) -> Any:
        """Steps the parameters.

        Raises:
            NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define step")

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with names in place of numbers."""
        names, plain = self._names(), super().state_dict()
        return {
            "state": {names[number]: each for number, each in plain["state"].items()},
            "param_groups": [
                {**group, "params": [names[number] for number in group["params"]]}
                for group in plain["param_groups"]
            ],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the result of `state_dict`.

        Raises:
            InvalidArgumentError: if it is of other parameters; nothing is changed.
        """
        super().load_state_dict(self._numbered(state_dict))

    def _numbered(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        numbers = {name: number for number, name in enumerate(self._names())}
        found = {name for group in state_dict["param_groups"] for name in group["params"]}
        if found != numbers.keys():
            raise InvalidArgumentError(
                f"this state_dict is of parameters {sorted(found)}, the optimizer of "
                f"{sorted(numbers)}; make it for the same parameters"
            )
        return {
            "state": {numbers[name]: each for name, each in state_dict["state"].items()},
            "param_groups": [
                {**group, "params": [numbers[name] for name in group["params"]]}
                for group in state_dict["param_groups"]
            ],
        }

    def _names(self) -> list[str]:
        """Names in the order in which the optimizer numbers its parameters."""
        by_id = {id(each): name for name, each in self.params.items()}
        return [by_id[id(each)] for group in self.param_groups for each in group["params"]]


class KeyedOptimizerWrapper(KeyedOptimizer):
    """Ordinary parameters by name, and the optimizer that a function creates for them.

    Args:
        params: name → parameter, such as ``dict(model.named_parameters())``; anchors of rows are
            left out.
        optim_factory: creates an optimizer of a list of parameters.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        optim_factory: Callable[[Any], torch.optim.Optimizer],
    ) -> None:
        ordinary = [each for each in params.values() if not isinstance(each, Anchor)]
        # If all parameters of a model are anchors of rows, none is left; torch rejects an empty list.
        self._inner = optim_factory(ordinary or [{"params": []}])
        super().__init__(params, self._inner.state, self._inner.param_groups)
        self.defaults = self._inner.defaults
        self._share()

    def _share(self) -> None:
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def step(self, closure: Any = None) -> Any:
        """As the optimizer's."""
        return self._inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the optimizer's."""
        self._inner.zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As of the base."""
        self._inner.load_state_dict(self._numbered(state_dict))
        self._share()
