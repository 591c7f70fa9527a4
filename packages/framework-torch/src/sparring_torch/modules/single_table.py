"""Base class of `Embedding` and `EmbeddingBag`: modules with one table and torch's arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.ids import to_tensor
from sparring_torch.modules.table_module import TableModule

__all__ = ["SingleTable", "explain_torch_arguments"]

Init = TypeVar("Init", bound=Callable[..., None])
Table = TypeVar("Table", bound="SingleTable")

_ONLY_IN_TORCH = {
    "sparse": "omit it, because only rows that a batch looked up get gradients, and "
    "sparring_torch.Optimizer changes only these",
    "max_norm": "lookups do not renormalize rows; divide the output by its norm",
    "norm_type": "lookups do not renormalize rows; divide the output by its norm",
    "scale_grad_by_freq": "gradients of an id are summed; use EmbeddingBag with per_sample_weights "
    "to scale them",
    "_weight": "use {name}.from_pretrained(weights) to set rows",
    "_freeze": "use {name}.from_pretrained(weights) to set rows",
}


def explain_torch_arguments(init: Init) -> Init:
    """Decorates `__init__`: rejects arguments of `torch.nn.Embedding` and names the alternative."""

    @functools.wraps(init)
    def checked_init(self: Any, *positional: Any, **named: Any) -> None:
        name = type(self).__name__
        if len(positional) > 1 or (positional and "embedding_dim" in named):
            count, *others = positional
            dim = others[0] if others else named["embedding_dim"]
            raise InvalidArgumentError(
                f"{name}({', '.join(map(repr, positional))}): found a number of embeddings before the "
                f"dim, as in torch.nn.{name}. A table grows with its ids, which may be any int64: "
                f"write {name}({dim!r}), or {name}({dim!r}, num_embeddings={count!r}) to limit the "
                "number of rows"
            )
        for each in named.keys() & _ONLY_IN_TORCH.keys():
            raise InvalidArgumentError(
                f"{name}: {each} is an argument of torch.nn.{name}, found {named[each]!r}; "
                + _ONLY_IN_TORCH[each].format(name=name),
                argument=each,
            )
        init(self, *positional, **named)

    return checked_init  # type: ignore[return-value]


class SingleTable(TableModule):
    """A module with one table."""

    name: str
    embedding_dim: int
    padding_idx: int | None

    @classmethod
    def from_pretrained(
        cls: type[Table],
        weights: Tensor | npt.NDArray[Any],
        ids: Tensor | npt.NDArray[Any] | Sequence[int] | None = None,
        *,
        freeze: bool = True,
        **options: Any,
    ) -> Table:
        """Creates a module whose table starts with the given embeddings.

        They are written when the module joins a container, through `Optimizer`,
        `DistributedModelParallel` or the first lookup. All ranks must pass the same embeddings. If a
        storage outlives the process and there are several ranks, use `StepContainer.assign` after the
        `Optimizer` is created instead. The row of `padding_idx` is skipped.

        Args:
            weights: ``(n, embedding_dim)``; the table has their dtype unless `dtype` is given.
            ids: ``(n,)`` distinct ids; None means 0 to n - 1, as in torch.
            freeze: if True, as in torch, rows are not trained until ``requires_grad_(True)`` is called.
            **options: options of the module, for example ``name``.

        Raises:
            InvalidArgumentError: weights or ids have a wrong shape, or an id is repeated.
        """
        given = to_tensor(weights, "from_pretrained: weights").detach().cpu()
        if given.dim() != 2:
            raise InvalidArgumentError(
                f"from_pretrained: weights must have shape (n, embedding_dim), found shape "
                f"{tuple(given.shape)}",
                shape=tuple(given.shape),
            )
        positions = (
            torch.arange(len(given)) if ids is None else to_tensor(ids, "from_pretrained: ids")
        )
        if positions.shape != (len(given),) or positions.is_floating_point():
            raise InvalidArgumentError(
                f"from_pretrained: ids must be {len(given)} integers, one per embedding, found shape "
                f"{tuple(positions.shape)} of {positions.dtype}",
                shape=tuple(positions.shape),
            )
        if len(np.unique(positions.cpu().numpy())) < len(positions):
            raise InvalidArgumentError("from_pretrained: found a repeated id; give each id once")
        options.setdefault("dtype", given.dtype)
        make: Any = cls
        module: Table = make(given.shape[1], **options)
        if module.padding_idx is not None:
            is_kept = positions.cpu() != module.padding_idx
            positions, given = positions[is_kept], given[is_kept]
        if given.dtype is torch.bfloat16:  # NumPy does not support it
            given = given.float()
        if freeze:
            module.requires_grad_(False)
        module.agent.add_initial_rows(module.name, positions.cpu().numpy(), given.numpy())
        return module
