"""`distribute`, `distribution_report` and `restore`."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from sparring.adapter import DistributionReport, PlanLike, StorageLike
from sparring.errors import InvalidArgumentError
from sparring_torch.distributed.distributed_model_parallel import DistributedModelParallel
from sparring_torch.modules.table_module import TableModule
from sparring_torch.transpiler.distribution import Distribution, DistributionOptions, Optimizers
from sparring_torch.transpiler.replaced_module import ReplacedModule, replace_module

__all__ = ["distribute", "distribution_report", "restore"]


def distribute(  # noqa: PLR0913 - each is one choice of the user's, by keyword
    model: nn.Module,
    optimizer: Optimizers = None,
    *,
    plan: PlanLike = None,
    semantics: str = "exact",
    keep: Collection[str] = (),
    storage: StorageLike = "hkv",
    service: str | os.PathLike[str] | None = None,
    find_unused_parameters: bool = False,
    dense: str = "ddp",
) -> tuple[Any, Any]:
    """Converts a program for one machine to one for many ranks, in place; start it with torchrun.

    Two lines of a program change::

        from sparring_torch import distribute
        …
        model, optimizer = distribute(model, optimizer)

    Each `nn.Embedding` and `nn.EmbeddingBag` is replaced by a module with a table that contains its
    weight, and the optimizer by one that steps tables and parameters. On several ranks,
    `DistributedModelParallel` averages gradients. Call it after weights are initialized or loaded and
    the optimizer is created, but before schedulers are.

    Args:
        model: a module of torch on one machine; the weights of rank 0 are used.
        optimizer: optimizer of all its parameters; or several, of which one has all embeddings.
        plan: sharding of tables, see `DistributedModelParallel`.
        semantics: ``exact`` rejects an optimizer that changes rows without a gradient; ``lazy`` accepts
            it, and such rows stay unchanged.
        keep: paths of modules that are not replaced; all ranks have their weights.
        storage: storage of the rows.
        service: configuration file of a service of the role ``parameters`` that stores the tables.
            Lookups pull from it, and steps push to it and wait until the push is applied. Each process
            is a trainer without ranks. A service without rows receives the weights; others keep theirs.
        find_unused_parameters: see `DistributedModelParallel`.
        dense: see `DistributedModelParallel`.

    Returns:
        The model, wrapped if there are several ranks, and the optimizer, or as many as were given.
        ``optimizer.report`` is the `DistributionReport`.

    Raises:
        UnsupportedError: a module or the optimizer cannot be distributed. The message and ``report`` list
            all of them. Nothing was changed.
        InvalidArgumentError: `semantics` is unknown, or an argument is not a module or optimizer.

    Examples:
        >>> import torch
        >>> from sparring_torch import distribute
        >>> model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> model, optimizer = distribute(model, optimizer)
        >>> model[0]
        Embedding(4, name='embedding.0')
    """
    options = DistributionOptions(
        plan, semantics, keep, storage, service, find_unused_parameters, dense
    )
    program = Distribution(model, optimizer, options)
    program.check()
    distributed, optimizers = program.replace()
    if isinstance(optimizer, Sequence):
        return distributed, optimizers
    return distributed, next(iter(optimizers), None)


def distribution_report(
    model: nn.Module,
    optimizer: Optimizers = None,
    *,
    semantics: str = "exact",
    keep: Collection[str] = (),
    dense: str = "ddp",
) -> DistributionReport:
    """Returns the report on what `distribute` would do with the same arguments.

    `model`, `optimizer`, `semantics`, `keep` and `dense` are the arguments of `distribute`.

    Raises:
        InvalidArgumentError: see `distribute`.

    Examples:
        >>> import torch
        >>> from sparring_torch import distribution_report
        >>> model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 1))
        >>> print(distribution_report(model))
        module  class      outcome   reason
        0       Embedding  replaced  table embedding.0; no optimizer has its weight: rows are read only
        1       Linear     kept      ordinary parameters
    """
    options = DistributionOptions(semantics=semantics, keep=keep, dense=dense)
    return Distribution(model, optimizer, options).report()


def restore(model: nn.Module) -> nn.Module:
    """Restores the modules that `distribute` replaced, with the trained weights, in place.

    All ranks must call it, and receive all weights. Create a new optimizer for them.

    Args:
        model: the model that `distribute` returned.

    Returns:
        The model without a wrapper.

    Raises:
        InvalidArgumentError: the model has no module that `distribute` replaced.

    Examples:
        >>> import torch
        >>> from sparring_torch import distribute, restore
        >>> model, _ = distribute(torch.nn.Sequential(torch.nn.Embedding(10, 4)))
        >>> restore(model)
        Sequential(
          (0): Embedding(10, 4)
        )
    """
    if not isinstance(model, nn.Module):
        raise InvalidArgumentError(f"restore: found {type(model).__name__}, expected a module")
    inner: nn.Module = model.module if isinstance(model, DistributedModelParallel) else model
    modules = [
        each
        for each in inner.modules()
        if isinstance(each, TableModule) and hasattr(each, "replaced")
    ]
    if not modules:
        raise InvalidArgumentError(
            f"restore: {type(inner).__name__} has no module that distribute replaced; give the model "
            "that distribute returned"
        )
    read = [_weights(each) for each in modules]
    if isinstance(model, DistributedModelParallel):
        model.undo_sharding()
    for module, weights in zip(modules, read, strict=True):
        replaced: ReplacedModule = module.replaced
        replaced.give_back(weights)
        replaced.module.train(module.training)
        replaced.module.requires_grad_(module.anchor.requires_grad)
        replace_module(inner, replaced.paths, replaced.module)
    return inner


def _weights(module: TableModule) -> list[Tensor]:
    """Returns the trained weights of a replaced module."""
    replaced: ReplacedModule = module.replaced
    weights = []
    for each in replaced.tables:
        values = module.read_embeddings(np.arange(each.num_rows), each.name)
        values = values.to(each.empty.device, each.empty.dtype)
        if each.skipped is not None and each.row is not None:
            values[each.skipped] = each.row
        weights.append(values)
    return weights
