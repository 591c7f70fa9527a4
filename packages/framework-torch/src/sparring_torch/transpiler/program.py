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
    """Makes the program of one machine one of many ranks, in place; torchrun starts it.

    Two lines of a program change::

        from sparring_torch import distribute
        …
        model, optimizer = distribute(model, optimizer)

    Each `nn.Embedding` and `nn.EmbeddingBag` is replaced by a module with a table that begins with its
    weight, and the optimizer by one that steps tables and parameters. Parameters of several ranks are
    averaged by `DistributedModelParallel`. Call it once weights are made or loaded and the optimizer is
    made, before schedulers are.

    Args:
        model: a module of torch on one machine; rank 0's weights count.
        optimizer: of its parameters, and of no others; or several, of which one has all embeddings.
        plan: how tables are sharded, as of `DistributedModelParallel`.
        semantics: ``exact``: an optimizer that would move rows without a gradient is refused; ``lazy``:
            such rows stay as they are, and the optimizer differs from what it was.
        keep: paths of modules that stay as they are, with weights on all ranks.
        storage: what keeps the rows.
        service: the file of a service of the role ``parameters`` that has the tables: lookups pull, and
            steps push and wait until that is applied. Each process is a trainer without ranks. A service
            without rows gets the weights; one with rows keeps them.
        find_unused_parameters: as of `DistributedModelParallel`.
        dense: as of `DistributedModelParallel`.

    Returns:
        The model, which is wrapped where there are several ranks, and the optimizer, or as many as were
        given. ``optimizer.report`` is the `DistributionReport`.

    Raises:
        UnsupportedError: a module or the optimizer cannot be distributed; its text lists all of them, and
            ``report`` has them. Nothing was changed.
        InvalidArgumentError: another value of `semantics`, or something that is no module or optimizer.
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
    """Report of what `distribute` would do with the same arguments. It changes nothing.

    Raises:
        InvalidArgumentError: as `distribute`.
    """
    options = DistributionOptions(semantics=semantics, keep=keep, dense=dense)
    return Distribution(model, optimizer, options).report()


def restore(model: nn.Module) -> nn.Module:
    """Gives the modules back that `distribute` replaced, with the trained weights, in place.

    All ranks call it; each gets all weights. An optimizer for them is made again.

    Args:
        model: what `distribute` returned.

    Returns:
        The model, not wrapped.

    Raises:
        InvalidArgumentError: nothing of it was replaced by `distribute`.
    """
    if not isinstance(model, nn.Module):
        raise InvalidArgumentError(f"restore takes a module, found {type(model).__name__}")
    inner: nn.Module = model.module if isinstance(model, DistributedModelParallel) else model
    modules = [
        each
        for each in inner.modules()
        if isinstance(each, TableModule) and hasattr(each, "replaced")
    ]
    if not modules:
        raise InvalidArgumentError(
            f"restore: {type(inner).__name__} has no module that distribute replaced; give what "
            "distribute returned"
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
    """Each weight of a replaced module, as it was trained."""
    replaced: ReplacedModule = module.replaced
    weights = []
    for each in replaced.tables:
        values = module.read_embeddings(np.arange(each.num_rows), each.name)
        values = values.to(each.empty.device, each.empty.dtype)
        if each.skipped is not None and each.row is not None:
            values[each.skipped] = each.row
        weights.append(values)
    return weights
