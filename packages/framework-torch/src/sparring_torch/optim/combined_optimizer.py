"""`CombinedOptimizer`: combines optimizers of rows and of ordinary parameters.

For code that supports a single optimizer: schedulers, Lightning's automatic optimization, TorchRec's
programs.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar, overload

import torch

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.lookup.row_gradients import Anchor
from sparring_torch.optim.optimizer import Optimizer

__all__ = ["CombinedOptimizer", "OptimizerOfParts"]

_Loss = TypeVar("_Loss")


class OptimizerOfParts(torch.optim.Optimizer):
    """Base class of optimizers whose methods call the methods of their parts."""

    _parts: dict[str, torch.optim.Optimizer]

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], _Loss]) -> _Loss: ...

    def step(self, closure: Callable[[], _Loss] | None = None) -> _Loss | None:
        """Steps each part.

        Args:
            closure: computes the loss again, calls backward, and returns the loss; called once.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._write_groups()
        # Rows first: if their optimizer rejects the step, no parameter has changed.
        for part in sorted(self._parts.values(), key=lambda part: not isinstance(part, Optimizer)):
            part.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Calls `zero_grad` of each part.

        Args:
            set_to_none: see `torch.optim.Optimizer.zero_grad`.
        """
        for part in self._parts.values():
            part.zero_grad(set_to_none)

    def _write_groups(self) -> None:
        """Copies hyper-parameters from `param_groups` to the parts. By default the parts share the
        groups, so there is nothing to copy."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the `state_dict` of each part by name."""
        self._write_groups()
        return _States((name, part.state_dict()) for name, part in self._parts.items())

    def __repr__(self) -> str:
        parts = (f"{name}: {part!r}" for name, part in self._parts.items())
        return "\n".join([f"{type(self).__name__} of", *parts])


class _States(OrderedDict[str, Any]):
    """States of the parts. Functions that expect the state of one optimizer get an error."""

    def __missing__(self, key: str) -> NoReturn:
        if key not in ("state", "param_groups"):
            raise KeyError(key)
        raise UnsupportedError(
            f"found no {key!r} in the state_dict of several optimizers, which has the parts "
            f"{', '.join(self)}; functions such as torch.distributed.checkpoint.state_dict."
            "get_state_dict need the optimizer of the ordinary parameters. The rows' optimizer state is "
            "in the state_dict of the model, and the rest in state_dict() of each optimizer"
        )

    def __reduce__(self) -> Any:
        return OrderedDict, (), None, None, iter(self.items())


class CombinedOptimizer(OptimizerOfParts):
    """Several optimizers as one: each method calls the method of every part.

    `param_groups` contains the group dicts of all parts, so changes by a scheduler affect the parts.
    `step` steps a `sparring_torch.Optimizer` before all others: if it rejects a step
    (`NonFiniteGradientError`, `CapacityError`), no parameter has changed.

    Args:
        optimizers: optimizers, or pairs of a name and an optimizer. Names are the keys of
            `state_dict`; an optimizer without a name has its position: ``"0"``, ``"1"``, ….

    Raises:
        InvalidArgumentError: there are no optimizers, an element is not an optimizer, or a name or an
            optimizer is repeated.
        UnsupportedError: an optimizer calls its closure itself (LBFGS).

    Examples:
        >>> import torch
        >>> from sparring_torch import CombinedOptimizer, Embedding, Optimizer
        >>> model = torch.nn.Sequential(Embedding(4, name="items"), torch.nn.Linear(4, 1))
        >>> sparse = Optimizer(model, torch.optim.Adagrad, lr=0.05)
        >>> dense = torch.optim.Adam(model.parameters(), lr=1e-3)
        >>> optimizer = CombinedOptimizer([("rows", sparse), ("layers", dense)])
        >>> [name for name, _ in optimizer.optimizers]
        ['rows', 'layers']
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
                # Gradients of rows belong only to the groups of the rows' optimizer.
                for group in part.param_groups:
                    group["params"] = [p for p in group["params"] if not isinstance(p, Anchor)]
        if not self._parts:
            raise InvalidArgumentError("CombinedOptimizer: found no optimizers; give at least one")
        self._is_made = False
        super().__init__(self.param_groups, {})
        self._is_made = True
        # Of all parts, because OneCycleLR reads `betas` or `momentum` of each group if they are defaults.
        first, *others = self._parts.values()
        self.defaults = {
            name: value
            for name, value in first.defaults.items()
            if all(name in each.defaults for each in others)
        }

    def _check(self, name: str, part: object) -> None:
        if not isinstance(part, torch.optim.Optimizer):
            raise InvalidArgumentError(
                f"CombinedOptimizer: found {type(part).__name__}, expected torch optimizers; create "
                "them with sparring_torch.Optimizer(model, …) for rows and torch.optim for parameters"
            )
        if name in self._parts or any(part is each for each in self._parts.values()):
            raise InvalidArgumentError(
                f"CombinedOptimizer: found optimizer {name!r} twice; give each name once", name=name
            )
        closure = inspect.signature(part.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise UnsupportedError(
                f"CombinedOptimizer: {type(part).__name__} calls its closure several times per step, "
                "but the others would step once; step it separately"
            )

    @property
    def optimizers(self) -> list[tuple[str, torch.optim.Optimizer]]:
        """Name and optimizer of each part, in the given order."""
        return list(self._parts.items())

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The current groups of all parts, in a new list."""
        return [group for part in self._parts.values() for group in part.param_groups]

    @param_groups.setter
    def param_groups(self, groups: object) -> None:
        """Ignores the groups that torch's constructor sets."""

    @property
    def state(self) -> Any:
        """The current state of all parameters of all parts, in a new dict."""
        return {key: value for part in self._parts.values() for key, value in part.state.items()}

    @state.setter
    def state(self, state: object) -> None:
        """Ignores the state that torch's constructor sets."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not supported, because a group belongs to one of the parts.

        Args:
            param_group: ignored.

        Raises:
            UnsupportedError: always, after construction.
        """
        if not self._is_made:
            return  # called by torch's constructor
        raise UnsupportedError(
            "add_param_group: a CombinedOptimizer only has the groups of its parts; add the group to "
            f"one of its optimizers: {', '.join(self._parts)}"
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads the `state_dict` of each part.

        Args:
            state_dict: name → `state_dict` of the part; the names must be the names of the parts.

        Raises:
            InvalidArgumentError: the names of the parts differ, and nothing is changed; or a part
                rejects its state, and the parts before it are loaded.
        """
        if set(state_dict) != set(self._parts):
            raise InvalidArgumentError(
                f"load_state_dict: found {', '.join(map(str, state_dict)) or 'nothing'}, expected the "
                f"optimizers {', '.join(self._parts)}; combine them under the names with which they "
                "were saved: CombinedOptimizer([(name, optimizer), …])"
            )
        for name, part in self._parts.items():
            part.load_state_dict(state_dict[name])

    def __reduce_ex__(self, protocol: object) -> Any:
        raise UnsupportedError(
            "a CombinedOptimizer cannot be copied or pickled, because it belongs to its model; create "
            "one for the copy of the model, and call its load_state_dict(optimizer.state_dict())"
        )
