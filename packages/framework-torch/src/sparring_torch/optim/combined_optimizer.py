"""`CombinedOptimizer`: the optimizer of the rows and those of the ordinary parameters as one.

For loops that know one optimizer: schedulers, Lightning's automatic optimization, TorchRec's programs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

import torch

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.lookup.row_gradients import Anchor
from sparring_torch.optim.optimizer import Optimizer

__all__ = ["CombinedOptimizer", "OptimizerOfParts"]

_Loss = TypeVar("_Loss")


class OptimizerOfParts(torch.optim.Optimizer):
    """Optimizer whose methods call those of its parts."""

    _parts: dict[str, torch.optim.Optimizer]

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], _Loss]) -> _Loss: ...

    def step(self, closure: Callable[[], _Loss] | None = None) -> _Loss | None:
        """Steps each part.

        Args:
            closure: computes the loss again, with gradients, and returns it; called once.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._write_groups()
        # The rows first: they may refuse a step, and then no parameter has moved.
        for part in sorted(self._parts.values(), key=lambda part: not isinstance(part, Optimizer)):
            part.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's, of each part."""
        for part in self._parts.values():
            part.zero_grad(set_to_none)

    def _write_groups(self) -> None:
        """Brings hyper-parameters, as they are in `param_groups`, to the parts: here, they are theirs."""

    def state_dict(self) -> dict[str, Any]:
        """Name → `state_dict` of that part."""
        self._write_groups()
        return {name: part.state_dict() for name, part in self._parts.items()}

    def __repr__(self) -> str:
        parts = (f"{name}: {part!r}" for name, part in self._parts.items())
        return "\n".join([f"{type(self).__name__} of", *parts])


class CombinedOptimizer(OptimizerOfParts):
    """Several optimizers as one: each method calls that of every part.

    Use::

        sparse = sparring_torch.Optimizer(model, torch.optim.Adagrad, lr=0.05)
        dense = torch.optim.Adam(model.parameters(), lr=1e-3)
        optimizer = sparring_torch.CombinedOptimizer([sparse, dense])

    `param_groups` are the groups of all parts, the very dicts: what a scheduler writes into them, the
    parts read. `step` steps a `sparring_torch.Optimizer` before all others, because it may refuse a
    step (`NonFiniteGradientError`, `CapacityError`), and then no parameter has moved.

    Args:
        optimizers: optimizers, or pairs of a name and an optimizer. Names are the keys of
            `state_dict`; an optimizer without one is called by its place: ``"0"``, ``"1"``, ….

    Raises:
        InvalidArgumentError: no optimizers, something else, two of one name, or one of them twice.
        UnsupportedError: one that calls its closure itself (LBFGS).
    """

    def __init__(
        self, optimizers: Iterable[torch.optim.Optimizer | tuple[str, torch.optim.Optimizer]]
    ) -> None:
        self._parts: dict[str, torch.optim.Optimizer] = {}
        for place, given in enumerate(optimizers):
            name, part = given if isinstance(given, tuple) else (str(place), given)
            self._check(name, part)
            self._parts[name] = part
            if not isinstance(part, Optimizer):
                # The gradients of rows are seen in the groups of their own optimizer, and once.
                for group in part.param_groups:
                    group["params"] = [p for p in group["params"] if not isinstance(p, Anchor)]
        if not self._parts:
            raise InvalidArgumentError("CombinedOptimizer needs at least one optimizer, found none")
        self._is_made = False
        super().__init__(self.param_groups, {})
        self._is_made = True
        self.defaults = {}
        for part in reversed(self._parts.values()):
            self.defaults.update(part.defaults)

    def _check(self, name: str, part: object) -> None:
        if not isinstance(part, torch.optim.Optimizer):
            raise InvalidArgumentError(
                f"CombinedOptimizer takes optimizers of torch, found {type(part).__name__}; make one "
                "with sparring_torch.Optimizer(model, …) for rows, torch.optim for parameters"
            )
        if name in self._parts or any(part is each for each in self._parts.values()):
            raise InvalidArgumentError(
                f"CombinedOptimizer: optimizer {name!r} was given twice; name each once", name=name
            )
        closure = inspect.signature(part.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise UnsupportedError(
                f"CombinedOptimizer: {type(part).__name__} calls its closure several times in a step, "
                "and the others would step once; step it by itself"
            )

    @property
    def optimizers(self) -> list[tuple[str, torch.optim.Optimizer]]:
        """Name and optimizer of each part, in the order in which they were given."""
        return list(self._parts.items())

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all parts, as they are now; the list is made at each call."""
        return [group for part in self._parts.values() for group in part.param_groups]

    @param_groups.setter
    def param_groups(self, groups: object) -> None:
        """Ignores what torch's constructor sets: the groups are those of the parts."""

    @property
    def state(self) -> Any:
        """The state of each parameter of all parts, as it is now; the dict is made at each call."""
        return {key: value for part in self._parts.values() for key, value in part.state.items()}

    @state.setter
    def state(self, state: object) -> None:
        """Ignores what torch's constructor sets: the state is that of the parts."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuses: a group belongs to one of the parts.

        Raises:
            UnsupportedError: always, once the optimizer is made.
        """
        if not self._is_made:
            return  # torch's constructor
        raise UnsupportedError(
            "add_param_group: a CombinedOptimizer has no groups of its own; add the group to one of "
            f"its optimizers, {', '.join(self._parts)}, before it is combined or after"
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Gives each part back what `state_dict` had of it.

        Raises:
            InvalidArgumentError: it has other names than this optimizer; nothing is changed. Or a part
                refuses its own; parts before it are loaded.
        """
        if set(state_dict) != set(self._parts):
            raise InvalidArgumentError(
                f"this state_dict has {', '.join(map(str, state_dict)) or 'nothing'}, and the "
                f"optimizers are called {', '.join(self._parts)}; combine them under the names with "
                "which they were saved: CombinedOptimizer([(name, optimizer), …])"
            )
        for name, part in self._parts.items():
            part.load_state_dict(state_dict[name])

    def __reduce_ex__(self, protocol: object) -> Any:
        raise UnsupportedError(
            "a CombinedOptimizer is not copied or pickled, as it belongs to its model; make another for "
            "the copy of the model, and give it load_state_dict(optimizer.state_dict())"
        )
