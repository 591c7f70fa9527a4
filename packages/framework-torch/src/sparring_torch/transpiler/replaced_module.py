"""The module of torch whose place a module with tables took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from sparring.adapter import explain_missing_weight
from sparring.errors import UnsupportedError
from sparring_torch.transpiler.replacements import Kind

__all__ = ["ReplacedModule", "replace_module"]


@dataclass(frozen=True, slots=True)
class ReplacedTable:
    """A weight that is in a table now: its rows, the one that is not, and an empty tensor like it."""

    name: str
    num_rows: int
    skipped: int | None
    row: Tensor | None
    empty: Tensor


class ReplacedModule:
    """Keeps a module, without the elements of its weights, until `restore`.

    A weight that the program got hold of before raises wherever it is used: in a list, a closure or
    an optimizer it would be left as it was.

    Args:
        kind: how it was replaced.
        module: of torch.
        table: name of its table; of several, what their names begin with.
        paths: in the model.
    """

    def __init__(self, kind: Kind, module: nn.Module, table: str, paths: Sequence[str]) -> None:
        self.kind, self.module, self.paths = kind, module, paths
        self.tables: list[ReplacedTable] = []
        self.explain_missing_weight = explain_missing_weight(
            paths[0], kind.table_names(module, table)
        )
        for name, weight, skipped in kind.rows(module, table):
            row = None if skipped is None else weight.data[skipped].clone()
            empty = weight.data.new_empty(0, weight.shape[1])
            self.tables.append(ReplacedTable(name, len(weight), skipped, row, empty))
            weight.data = empty
        self._weights = [(each, type(each)) for each in kind.weights(module)]
        for each, its_class in self._weights:
            if its_class is nn.Parameter:
                _take(each, self.explain_missing_weight)

    def give_back(self, weights: Sequence[Tensor]) -> None:
        """Puts trained weights into the module."""
        for each, its_class in self._weights:
            each.__class__ = its_class
        self.kind.give_back(self.module, weights)


def replace_module(model: nn.Module, paths: Sequence[str], module: nn.Module) -> None:
    """Puts a module into a model, at each of some paths."""
    for path in paths:
        parent, _, name = path.rpartition(".")
        model.get_submodule(parent)._modules[name] = module


class _TakenWeight(nn.Parameter):
    """A parameter whose elements are in a table."""

    why: str

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        raise UnsupportedError(f"a weight is used that was made before distribute. {cls.why}")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            copied = memo[id(self)] = _taken(self.data.clone(), self.requires_grad, self.why)
        return copied

    def __reduce_ex__(self, _protocol: object) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return _taken, (self.data, self.requires_grad, self.why)


def _take(weight: nn.Parameter, why: str) -> None:
    """Makes a parameter raise wherever it is used."""
    weight.__class__ = type("TakenWeight", (_TakenWeight,), {"why": why})


def _taken(data: Tensor, requires_grad: bool, why: str) -> nn.Parameter:
    """Such a parameter in a copy or a pickle."""
    weight = nn.Parameter(data, requires_grad)
    _take(weight, why)
    return weight
