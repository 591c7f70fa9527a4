"""Which module with tables replaces an embedding of torch, and which embeddings are unsupported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparring.adapter import StorageLike, choose_unread_initializer, describe_added_methods
from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.ids import to_tensor
from sparring_torch.modules.embedding import Embedding
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.modules.table_module import TableModule

__all__ = ["Kind", "find_kind"]

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_IGNORED_METHODS = {"__init__", "reset_parameters", "extra_repr"}


class Kind(ABC):
    """How modules of one class are replaced."""

    has_several = False
    """Whether such a module has several tables."""

    def weights(self, module: Any) -> Sequence[nn.Parameter]:
        """Returns the weights that become tables."""
        return [module.weight]

    def table_names(self, module: Any, table: str) -> str:
        """Returns the names of the tables for the report."""
        return table

    @abstractmethod
    def refusal(self, module: Any) -> str:
        """Returns why the module cannot be replaced; empty if it can."""

    def note(self, module: Any) -> str:
        """Returns a remark on the replacement for the report."""
        if module.weight.dtype in (torch.float16, torch.bfloat16):
            return "rows of 16 bits are updated in float32 and rounded stochastically"
        return ""

    @abstractmethod
    def make(self, module: Any, table: str, storage: StorageLike) -> TableModule:
        """Creates the module with tables, without rows."""

    def rows(self, module: Any, table: str) -> list[tuple[str, Tensor, int | None]]:
        """Returns table, weight and the row that is not written, for each table."""
        return [(table, module.weight, module.padding_idx)]

    def give_back(self, module: Any, weights: Sequence[Tensor]) -> None:
        """Writes trained weights to the module that was replaced."""
        for parameter, values in zip(self.weights(module), weights, strict=True):
            parameter.data = values


class _TorchKind(Kind):
    """Replaces `nn.Embedding` and `nn.EmbeddingBag`."""

    def __init__(self, torch_class: type[nn.Module]) -> None:
        self._torch_class = torch_class

    def refusal(self, module: Any) -> str:
        weight = module.weight
        if added := describe_added_methods(type(module), self._torch_class, _IGNORED_METHODS):
            return added
        if isinstance(weight, nn.parameter.UninitializedParameter) or weight.is_meta:
            return "its weight has no elements yet; materialize it first"
        if weight.dtype not in _DTYPES:
            return f"its weight is {weight.dtype}; tables are float32, float64, float16 or bfloat16"
        if module.max_norm is not None:
            return (
                f"max_norm={module.max_norm} renormalizes rows in a lookup, but lookups never change "
                "tables"
            )
        if module.scale_grad_by_freq:
            return "scale_grad_by_freq divides gradients by counts in a batch, but tables do not"
        if getattr(module, "mode", "sum") == "max":
            return "mode='max' is not supported; tables support sum and mean"
        padding = module.padding_idx if self._torch_class is nn.Embedding else None
        if padding is not None and bool(weight[padding].any()):
            return (
                f"its row of padding_idx={padding} is not zero, but reads as zeros from a table; set "
                f"it to zero before: weight.data[{padding}] = 0"
            )
        return ""

    def make(self, module: Any, table: str, storage: StorageLike) -> TableModule:
        weight = module.weight
        given: dict[str, Any] = {
            "name": table,
            "padding_idx": module.padding_idx,
            "dtype": weight.dtype,
            "initializer": choose_unread_initializer(storage),
            "storage": storage,
            "device": None if weight.device.type == "cpu" else weight.device,
        }
        made: TableModule
        if self._torch_class is nn.Embedding:
            made = Embedding(module.embedding_dim, **given)
        else:
            made = EmbeddingBag(
                module.embedding_dim,
                mode=module.mode,
                include_last_offset=module.include_last_offset,
                **given,
            )
        if weight.dtype in (torch.float16, torch.bfloat16):
            made.to(weight.dtype)
        made.num_embeddings = module.num_embeddings
        made.train(module.training)
        made.requires_grad_(weight.requires_grad)
        made.register_forward_pre_hook(_RangeCheck(table, module.num_embeddings), with_kwargs=True)
        return made


class _RangeCheck:
    """Forward pre-hook that rejects ids which the replaced module did not have; can be pickled."""

    def __init__(self, table: str, count: int) -> None:
        self._table, self._count = table, count

    def __call__(self, module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        table, count = self._table, self._count
        if torch.compiler.is_compiling():
            return
        ids = to_tensor(given[0] if given else named["input"], f"ids of table {table!r}")
        if ids.is_nested or not ids.numel() or ids.device.type != "cpu":
            return
        low, high = (int(each) for each in torch.aminmax(ids))
        if low < 0 or high >= count:
            error = InvalidArgumentError(
                f"embedding {table!r}: found id {low if low < 0 else high}, but the module that it "
                f"replaced has embeddings 0 to {count - 1}; for ids of any size, use "
                "sparring_torch.Embedding(dim) in the model",
                table=table,
            )
            module.agent.raise_on_all_ranks(error, is_training=module.is_training)


_EMBEDDING, _EMBEDDING_BAG = _TorchKind(nn.Embedding), _TorchKind(nn.EmbeddingBag)


def find_kind(module: nn.Module) -> Kind | None:
    """Returns how a module is replaced; None if it is not an embedding."""
    if isinstance(module, nn.Embedding):
        return _EMBEDDING
    return _EMBEDDING_BAG if isinstance(module, nn.EmbeddingBag) else None
