"""`apply_optimizer_in_backward`: updates rows at the end of each backward pass.

forward ──► output with a hook ──► loss ──► backward ──► hook: queues a step ──► end: step
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
from sparring_torch.modules.table_module import (
    TableModule,
    list_table_modules,
    name_tables_by_path,
    untraced,
)
from sparring_torch.optim.optimizer import Optimizer, to_update_method

__all__ = [
    "InBackwardOptimizer",
    "apply_optimizer_in_backward",
    "in_backward_optimizer_filter",
    "in_backward_optimizers",
]


class InBackwardOptimizer(Optimizer):
    """An `Optimizer` that steps automatically at the end of each backward pass.

    It has the `param_groups` and `state_dict` of an `Optimizer`, and supports schedulers. Several
    ``backward()`` take several steps.
    """

    def step(self, closure: Any = None) -> Any:
        """Only calls `closure`, if given, because rows are already updated."""
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    step.hooked = True  # type: ignore[attr-defined]  # so that torch does not wrap it

    def step_now(self) -> None:
        """Applies the gradients to the rows."""
        super().step()
        self.zero_grad()


class _InBackward:
    """The optimizer of some modules, created when they are first trained or distributed.

    Before that, the container of their tables is not known.
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
        """Returns the optimizer; creates it in the first call."""
        if self._made is None:
            modules = [module for each in self._modules if (module := each()) is not None]
            self._made = InBackwardOptimizer(
                modules, self._optimizer_class, **self._hyperparameters
            )
        return self._made

    def prepare(self) -> None:
        """Prepares a forward pass; a failed backward pass may have queued a step that never ran."""
        self._is_queued = False
        self.make()

    def queue(self, _: Tensor) -> None:
        """Hook of a module's output in the backward pass."""
        if not self._is_queued:
            self._is_queued = True
            engine: Any = Variable._execution_engine
            engine.queue_callback(self._step)

    def _step(self) -> None:
        self._is_queued = False
        self.make().step_now()


# This is not an attribute of the module, because the optimizer does not train copies of the module.
_OF_MODULES: weakref.WeakKeyDictionary[nn.Module, _InBackward] = weakref.WeakKeyDictionary()


def apply_optimizer_in_backward(
    optimizer_class: type[torch.optim.Optimizer] | str | UpdateMethod,
    params: nn.Module | Iterable[nn.Module | nn.Parameter],
    optimizer_kwargs: Mapping[str, Any],
) -> None:
    """Updates rows in each backward pass, without a call of ``step``.

    As in TorchRec, call it before `DistributedModelParallel`, and create no other optimizer for these
    tables. Gradients are consumed when ``backward()`` returns, so they cannot be clipped; use
    `sparring_torch.Optimizer` to control the step.

    Args:
        optimizer_class: an optimizer class of torch or the name of an update method; see
            `sparring_torch.Optimizer`.
        params: ``collection.parameters()``, or modules.
        optimizer_kwargs: hyper-parameters, for example ``{"lr": 0.1}``.

    Raises:
        InvalidArgumentError: `params` contains no tables, an ordinary parameter, or a module that
            already has such an optimizer.
    """
    modules = list_table_modules(_modules_of(params))
    optimizer_class = to_update_method(optimizer_class)
    for module in modules:
        if module in _OF_MODULES:
            raise InvalidArgumentError(
                f"apply_optimizer_in_backward: tables {module.agent.table_names} already have such an "
                "optimizer; call apply_optimizer_in_backward once per module"
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
    """Returns the in-backward optimizers of a module's tables; creates them if necessary."""
    name_tables_by_path(module)
    found = dict.fromkeys(
        _OF_MODULES[each]
        for each in module.modules()
        if isinstance(each, TableModule) and each in _OF_MODULES
    )
    return [each.make() for each in found]


def in_backward_optimizer_filter(
    named_parameters: Iterable[tuple[str, nn.Parameter]], include: bool = False
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yields names and parameters that are not updated in backward.

    Args:
        named_parameters: names and parameters of a model.
        include: if True, yields instead the parameters that are updated in backward. Each module
            with tables has one such parameter, which has no elements.
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
                f"apply_optimizer_in_backward: found {type(each).__name__} of shape "
                f"{tuple(getattr(each, 'shape', ()))}, expected modules with tables or their "
                "parameters; give ordinary parameters to an optimizer of torch.optim"
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


@untraced  # compilers do not trace callbacks at the end of a backward pass
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
