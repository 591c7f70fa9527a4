"""`KeyedOptimizer` and `KeyedOptimizerWrapper`: optimizers whose state uses names of parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from sparring.errors import InvalidArgumentError
from sparring_torch.lookup.row_gradients import Anchor

__all__ = ["KeyedOptimizer", "KeyedOptimizerWrapper"]


class KeyedOptimizer(torch.optim.Optimizer):
    """Base of optimizers of named ordinary parameters; subclasses define `step`.

    Args:
        params: name → parameter; anchors of rows are skipped.
        state: parameter → its state; not copied.
        param_groups: groups as in torch.
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
            NotImplementedError: the subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define step")

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as in torch, with names instead of numbers."""
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
            InvalidArgumentError: it has other parameters; nothing is changed.
        """
        super().load_state_dict(self._numbered(state_dict))

    def _numbered(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        numbers = {name: number for number, name in enumerate(self._names())}
        found = {name for group in state_dict["param_groups"] for name in group["params"]}
        if found != numbers.keys():
            raise InvalidArgumentError(
                f"load_state_dict: found parameters {sorted(found)}, expected {sorted(numbers)}; "
                "create the optimizer for the same parameters"
            )
        return {
            "state": {numbers[name]: each for name, each in state_dict["state"].items()},
            "param_groups": [
                {**group, "params": [numbers[name] for name in group["params"]]}
                for group in state_dict["param_groups"]
            ],
        }

    def _names(self) -> list[str]:
        """Returns the names in the order of the optimizer's numbers of parameters."""
        by_id = {id(each): name for name, each in self.params.items()}
        return [by_id[id(each)] for group in self.param_groups for each in group["params"]]


class KeyedOptimizerWrapper(KeyedOptimizer):
    """Wraps an optimizer of named ordinary parameters.

    Args:
        params: name → parameter, for example ``dict(model.named_parameters())``; anchors of rows are
            skipped.
        optim_factory: creates an optimizer for a list of parameters.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        optim_factory: Callable[[Any], torch.optim.Optimizer],
    ) -> None:
        ordinary = [each for each in params.values() if not isinstance(each, Anchor)]
        # If all parameters are anchors of rows, none is left, and torch rejects an empty list.
        self._inner = optim_factory(ordinary or [{"params": []}])
        super().__init__(params, self._inner.state, self._inner.param_groups)
        self.defaults = self._inner.defaults
        self._share()

    def _share(self) -> None:
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def step(self, closure: Any = None) -> Any:
        """Steps the wrapped optimizer."""
        return self._inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Calls `zero_grad` of the wrapped optimizer."""
        self._inner.zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `KeyedOptimizer.load_state_dict`."""
        self._inner.load_state_dict(self._numbered(state_dict))
        self._share()
