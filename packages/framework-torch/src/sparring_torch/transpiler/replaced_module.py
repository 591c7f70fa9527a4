"""The module of torch that a module with tables replaced."""

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
    """A weight that is now in a table.

    If one row of the weight is not in the table, `skipped` is its number and `row` contains its
    values. Otherwise both are None. `empty` replaces the data of the weight.
    """

    name: str
    num_rows: int
    skipped: int | None
    row: Tensor | None
    empty: Tensor


class ReplacedModule:
    """Keeps a replaced module, without the elements of its weights, until `restore`.

    A weight that the program still references, in a list, a closure or an optimizer, raises when it is
    used, because it would not be trained.

    Args:
        kind: how the module was replaced.
        module: the module of torch.
        table: name of its table, or the prefix of the names of several.
        paths: paths in the model.
    """

    def __init__(self, kind: Kind, module: nn.Module, table: str, paths: Sequence[str]) -> None:
        self.kind, self.module, self.paths = kind, module, paths
        self.tables: list[ReplacedTable] = []
        self.missing_weight_reason = explain_missing_weight(
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
                _take(each, self.missing_weight_reason)

    def give_back(self, weights: Sequence[Tensor]) -> None:
        """Writes trained weights to the module."""
        for each, its_class in self._weights:
            each.__class__ = its_class
        self.kind.give_back(self.module, weights)


def replace_module(model: nn.Module, paths: Sequence[str], module: nn.Module) -> None:
    """Sets a module of a model at each of the paths."""
    for path in paths:
        parent, _, name = path.rpartition(".")
        model.get_submodule(parent)._modules[name] = module


class _TakenWeight(nn.Parameter):
    """A parameter whose elements are in a table."""

    why: str

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        raise UnsupportedError(f"found a use of a weight from before distribute. {cls.why}")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            copied = memo[id(self)] = _taken(self.data.clone(), self.requires_grad, self.why)
        return copied

    def __reduce_ex__(self, _protocol: object) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return _taken, (self.data, self.requires_grad, self.why)


def _take(weight: nn.Parameter, why: str) -> None:
    """Makes a parameter raise whenever it is used."""
    weight.__class__ = type("TakenWeight", (_TakenWeight,), {"why": why})


def _taken(data: Tensor, requires_grad: bool, why: str) -> nn.Parameter:
    """Creates a `_TakenWeight` when one is copied or unpickled."""
    weight = nn.Parameter(data, requires_grad)
    _take(weight, why)
    return weight
