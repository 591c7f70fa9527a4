"""`apply_optimizer_in_backward`: rows are updated at the end of each backward pass.

forward ──► output, with a hook ──► loss ──► backward ──► hook: queues a step ──► end: step
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from sparring.contracts import UpdateMethod
from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.jagged_tensor import JaggedTensor
from sparring_torch.jagged.keyed_tensor import KeyedTensor
from sparring_torch.lookup.row_gradients import Anchor
from sparring_torch.modules.table_module import TableModule, list_table_modules, untraced
from sparring_torch.optim.optimizer import Optimizer, to_update_method

__all__ = [
    "InBackwardOptimizer",
    "apply_optimizer_in_backward",
    "in_backward_optimizer_filter",
    "in_backward_optimizers",
]


class InBackwardOptimizer(Optimizer):
    """An `Optimizer` that steps by itself at the end of each backward pass.

    Its `param_groups` and `state_dict` are those of an `Optimizer`; schedulers may drive it. Several
    ``backward()`` take several steps.
    """

    def step(self, closure: Any = None) -> Any:
        """Calls `closure`, if there is one: rows are updated already."""
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    step.hooked = True  # type: ignore[attr-defined]  # so that torch leaves it as it is

    def step_now(self) -> None:
        """Applies the gradients to the rows."""
        super().step()
        self.zero_grad()


class _InBackward:
    """The optimizer of some modules, made when they are first trained or distributed.

    Before, it is not known which container their tables join.
    """

    def __init__(
        self,
        modules: Iterable[TableModule],
        optimizer_class: type[torch.optim.Optimizer] | str | UpdateMethod,
        hyperparameters: Mapping[str, Any],
    ) -> None:
        self._modules = [weakref.ref(module) for module in modules]
        self._optimizer_class, self._hyperparameters = optimizer_class, dict(hyperparameters)
        self._made: InBackwardOptimizer | None = None
        self._is_queued = False

    def make(self) -> InBackwardOptimizer:
        """The optimizer, made now if it was not."""
        if self._made is None:
            modules = [module for each in self._modules if (module := each()) is not None]
            self._made = InBackwardOptimizer(
                modules, self._optimizer_class, **self._hyperparameters
            )
        return self._made

    def prepare(self) -> None:
        """Before a forward pass. A backward pass that failed has queued a step that never came."""
        self._is_queued = False
        self.make()

    def queue(self, _: Tensor) -> None:
        """A backward pass has come to the output of a module."""
        if not self._is_queued:
            self._is_queued = True
            engine: Any = Variable._execution_engine
            engine.queue_callback(self._step)

    def _step(self) -> None:
        self._is_queued = False
        self.make().step_now()


# Not an attribute of the module: a copy of a module is not trained by the optimizer of the first.
_OF_MODULES: weakref.WeakKeyDictionary[nn.Module, _InBackward] = weakref.WeakKeyDictionary()


def apply_optimizer_in_backward(
    optimizer_class: type[torch.optim.Optimizer] | str | UpdateMethod,
    params: nn.Module | Iterable[nn.Module | nn.Parameter],
    optimizer_kwargs: Mapping[str, Any],
) -> None:
    """Updates rows in each backward pass, without a call of ``step``.

    As in TorchRec, it comes before `DistributedModelParallel`, and no other optimizer is made for
    these tables. Gradients are used up when ``backward()`` returns, so they cannot be clipped;
    `sparring_torch.Optimizer` is the one whose step a program takes itself.

    Args:
        optimizer_class: an optimizer class of torch or the name of an update method, as
            `sparring_torch.Optimizer` takes it.
        params: ``collection.parameters()`` or the modules themselves.
        optimizer_kwargs: hyper-parameters, as ``{"lr": 0.1}``.

    Raises:
        InvalidArgumentError: no tables among `params`, an ordinary parameter, or a module that has
            such an optimizer already.
    """
    modules = list_table_modules(_modules_of(params))
    optimizer_class = to_update_method(optimizer_class)
    for module in modules:
        if module in _OF_MODULES:
            raise InvalidArgumentError(
                f"tables {module.agent.table_names} have an optimizer in backward already; "
                "call apply_optimizer_in_backward once for each module"
            )
    in_backward = _InBackward(modules, optimizer_class, optimizer_kwargs)
    named = getattr(optimizer_class, "name", None) or getattr(optimizer_class, "__name__", None)
    for module in modules:
        _OF_MODULES[module] = in_backward
        module.agent.known_method = optimizer_class if isinstance(optimizer_class, str) else named
        module.agent.known_hyperparameters = optimizer_kwargs
        module.register_forward_pre_hook(_prepare)
        module.register_forward_hook(_watch_output)


def in_backward_optimizers(module: nn.Module) -> list[InBackwardOptimizer]:
    """The optimizers in backward of all tables of a module, made now if they were not."""
    found = dict.fromkeys(
        _OF_MODULES[each]
        for each in module.modules()
        if isinstance(each, TableModule) and each in _OF_MODULES
    )
    return [each.make() for each in found]


def in_backward_optimizer_filter(
    named_parameters: Iterable[tuple[str, nn.Parameter]], include: bool = False
) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and parameters that an optimizer of their own updates.

    Args:
        named_parameters: of a model.
        include: True gives those that are updated in backward instead: one for each module with
            tables, which has no elements.
    """
    for name, parameter in named_parameters:
        if isinstance(parameter, Anchor) == include:
            yield name, parameter


def _modules_of(params: nn.Module | Iterable[nn.Module | nn.Parameter]) -> list[nn.Module]:
    given = [params] if isinstance(params, nn.Module) else list(params)
    modules: list[nn.Module] = []
    for each in given:
        owner = each.owner() if isinstance(each, Anchor) and each.owner is not None else each
        if not isinstance(owner, nn.Module):
            raise InvalidArgumentError(
                "apply_optimizer_in_backward takes modules with tables or their parameters, found "
                f"{type(each).__name__} of shape {tuple(getattr(each, 'shape', ()))}; give "
                "ordinary parameters to an optimizer of torch.optim"
            )
        modules.append(owner)
    return modules


@untraced
def _prepare(module: nn.Module, _: Any) -> None:
    in_backward = _OF_MODULES.get(module)
    if in_backward is None or not module.anchor.requires_grad:
        return
    if module.training or torch.is_grad_enabled():
        in_backward.prepare()


@untraced  # compilers do not trace that a backward pass calls back at its end
def _watch_output(module: nn.Module, _: Any, output: Any) -> None:
    in_backward = _OF_MODULES.get(module)
    if in_backward is None:
        return
    for tensor in _tensors(output):
        if tensor.requires_grad:
            tensor.register_hook(in_backward.queue)  # type: ignore[no-untyped-call]


def _tensors(output: Any) -> list[Tensor]:
    parts = list(output.values()) if isinstance(output, dict) else [output]
    return [
        each.values() if isinstance(each, (JaggedTensor, KeyedTensor)) else each for each in parts
    ]
