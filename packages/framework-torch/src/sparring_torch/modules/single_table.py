"""The base of `Embedding` and `EmbeddingBag`: modules of one table, made as torch's are."""

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
    "sparse": "leave it out: only rows that a batch looked up get gradients, and "
    "sparring_torch.Optimizer changes only these",
    "max_norm": "no row is renormalised by a lookup; divide the output by its norm",
    "norm_type": "no row is renormalised by a lookup; divide the output by its norm",
    "scale_grad_by_freq": "gradients of an id are added up; look ids up by EmbeddingBag with "
    "per_sample_weights to scale them",
    "_weight": "bring rows in by {name}.from_pretrained(weights)",
    "_freeze": "bring rows in by {name}.from_pretrained(weights)",
}


def explain_torch_arguments(init: Init) -> Init:
    """Answers arguments of `torch.nn.Embedding` that mean something else here, or nothing."""

    @functools.wraps(init)
    def checked_init(self: Any, *positional: Any, **named: Any) -> None:
        name = type(self).__name__
        if len(positional) > 1 or (positional and "embedding_dim" in named):
            count, *others = positional
            dim = others[0] if others else named["embedding_dim"]
            raise InvalidArgumentError(
                f"{name}({', '.join(map(repr, positional))}): found a number of embeddings before "
                f"their dim, as torch.nn.{name} takes it. A table grows with its ids, which may be "
                f"any int64: write {name}({dim!r}), or {name}({dim!r}, num_embeddings={count!r}) to "
                "refuse more rows than that"
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
        """A module whose table begins with these embeddings.

        They are written when the module joins a container, by `Optimizer`, `DistributedModelParallel`
        or the first lookup; on several ranks all give the same. Into a storage that outlives the
        process, on several ranks, write them by `StepContainer.assign` after the `Optimizer` was
        made. The row of `padding_idx` is left out.

        Args:
            weights: ``(n, embedding_dim)``; their dtype is that of the table, unless `dtype` is given.
            ids: ``(n,)``, each once; None: 0 to n - 1, as in torch.
            freeze: if True, as in torch, rows are not trained until ``requires_grad_(True)`` is called.
            **options: of the module, as ``name``.

        Raises:
            InvalidArgumentError: weights or ids of another shape, or an id that is there twice.
        """
        given = to_tensor(weights, "from_pretrained: weights").detach().cpu()
        if given.dim() != 2:
            raise InvalidArgumentError(
                f"from_pretrained: weights must be (n, embedding_dim), found shape "
                f"{tuple(given.shape)}",
                shape=tuple(given.shape),
            )
        positions = (
            torch.arange(len(given)) if ids is None else to_tensor(ids, "from_pretrained: ids")
        )
        if positions.shape != (len(given),) or positions.is_floating_point():
            raise InvalidArgumentError(
                f"from_pretrained: ids must be whole numbers, one for each of {len(given)} "
                f"embeddings, found shape {tuple(positions.shape)} of {positions.dtype}",
                shape=tuple(positions.shape),
            )
        if len(np.unique(positions.cpu().numpy())) < len(positions):
            raise InvalidArgumentError("from_pretrained: an id is there twice; give each id once")
        options.setdefault("dtype", given.dtype)
        make: Any = cls
        module: Table = make(given.shape[1], **options)
        if module.padding_idx is not None:
            is_kept = positions.cpu() != module.padding_idx
            positions, given = positions[is_kept], given[is_kept]
        if given.dtype is torch.bfloat16:  # of which numpy knows nothing
            given = given.float()
        if freeze:
            module.requires_grad_(False)
        module.agent.add_initial_rows(module.name, positions.cpu().numpy(), given.numpy())
        return module
