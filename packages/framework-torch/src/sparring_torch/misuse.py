"""Rejects uses of torch that would silently lose or freeze rows; each error names the fix."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import NoReturn

import torch
import torch.distributed as dist

from sparring import PluginManager, StepContainer, StorageChoice, make_plugin_manager
from sparring.contracts import Storage
from sparring.errors import InvalidArgumentError, PluginError, UnsupportedError

__all__ = [
    "check_backend",
    "check_has_optimizer",
    "check_ranks",
    "check_steps",
    "reject_proxy",
    "reject_scripting",
    "reject_tracing",
    "reject_transform",
    "warn_about_bound",
]


def check_has_optimizer(tables: Sequence[str], container: StepContainer) -> None:
    """Checks, in the second forward pass of training, that an optimizer takes the gradients.

    Raises:
        InvalidArgumentError: the tables have gradients of the first pass and no optimizer.
    """
    waiting = [table for table in tables if container.resources.has_gradient(table)]
    if waiting:
        raise InvalidArgumentError(
            f"training: table{'s' * (len(waiting) > 1)} {', '.join(map(repr, waiting))} received "
            "gradients, but no optimizer applies them, so no row would be trained. Create one in "
            "addition to the optimizer of the parameters, and call step() of both: "
            "sparring_torch.Optimizer(model, torch.optim.Adam, lr=1e-3); or use torch.no_grad() if "
            "the model is not trained",
            tables=waiting,
        )


def check_ranks(tables: Sequence[str], container: StepContainer) -> None:
    """Checks that tables of one rank are not trained while `torch.distributed` has several ranks.

    Raises:
        InvalidArgumentError: `torch.distributed` has several ranks; the message names the fix.
    """
    if not (dist.is_available() and dist.is_initialized()) or container.collective.world_size > 1:
        return
    size = dist.get_world_size()
    if size > 1:
        raise InvalidArgumentError(
            f"training: torch.distributed has {size} ranks, but the rows of "
            f"{', '.join(map(repr, tables))} are local to this rank, so the ranks would train "
            "different rows. Before you create optimizers, wrap the model, instead of in "
            "DistributedDataParallel: model = sparring_torch.DistributedModelParallel(model). To "
            "train separate tables on each rank, pass container=sparring.StepContainer() to the "
            "modules",
            tables=list(tables),
        )


MAX_PASSES = 100
"""Number of backward passes without a step after which `check_steps` warns."""


def check_steps(tables: Sequence[str], container: StepContainer) -> None:
    """Warns, in a forward pass of training, if gradients accumulate because no step takes them."""
    if container.resources.count_pass() == MAX_PASSES:
        warnings.warn(
            f"training: {MAX_PASSES} backward passes have run since the last step() of the Optimizer "
            f"of tables {', '.join(map(repr, tables))}, which keeps their gradients in memory; call "
            "step() and zero_grad() for each batch, or requires_grad_(False) on the module if its rows "
            "are not trained",
            stacklevel=3,
        )


def reject_tracing(tables: Sequence[str]) -> NoReturn:
    """Rejects `torch.jit.trace`.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        f"torch.jit.trace would record the rows of one batch from {', '.join(map(repr, tables))} and "
        "return them for all ids. Use torch.export.export instead, or trace only the part of the model "
        "that takes embeddings",
        tables=list(tables),
    )


def reject_transform(tables: Sequence[str]) -> NoReturn:
    """Rejects transforms of `torch.func`, such as `vmap` and `grad`.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        f"torch.func: a lookup in {', '.join(map(repr, tables))} inside of vmap, grad or another "
        "transform, which cannot follow rows in storages. Look up the embeddings before the transform, "
        "for all ids in one call, and transform the function of the embeddings",
        tables=list(tables),
    )


def reject_proxy(given: object, owner: str) -> None:
    """Rejects the proxy with which `torch.fx.symbolic_trace` calls a module.

    Raises:
        UnsupportedError: `given` is a proxy.
    """
    if isinstance(given, torch.fx.Proxy):
        raise UnsupportedError(
            f"{owner}: found a torch.fx.Proxy, but torch.fx.symbolic_trace cannot trace a lookup. Use "
            "torch.export.export, or trace with a subclass of torch.fx.Tracer whose is_leaf_module "
            "returns True for modules of sparring_torch"
        )


def reject_same_names(tables: Sequence[str]) -> NoReturn:
    """Rejects a second module with tables of the same names.

    Raises:
        InvalidArgumentError: always.
    """
    raise InvalidArgumentError(
        f"tables {', '.join(map(repr, tables))}: found two modules with a table of this name, which "
        "would use the same rows, while modules of torch.nn and TorchRec have separate ones. Give one of "
        "them another name, or create a module with shared=True if both should use the same rows",
        tables=list(tables),
    )


def reject_scripting(owner: str) -> NoReturn:
    """Rejects `torch.jit.script`.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        f"torch.jit.script cannot compile {owner}, because its rows are in storages; export the model "
        "with torch.export.export or sparring_torch.export_program, or script only the part of the "
        "model that takes embeddings"
    )


@functools.cache
def _warn_about_bound_once() -> None:
    """Does nothing. The first call is cached, which records that the warning was given."""


def warn_about_bound(table: str, num_embeddings: int) -> None:
    """Warns once per process that `num_embeddings` does not limit the values of ids."""
    if _warn_about_bound_once.cache_info().currsize:
        return
    _warn_about_bound_once()
    warnings.warn(
        f"table {table!r}: num_embeddings={num_embeddings} is the maximum number of rows in its "
        "storage per rank; a step that needs more raises CapacityError. Unlike in torch.nn and "
        "TorchRec, it is not a range of ids: ids may be any int64, and tables grow with them. Omit "
        "it to set no limit (this warning is shown once)",
        stacklevel=2,
    )


def check_backend(storage: StorageChoice | Storage, container: StepContainer | None) -> None:
    """Checks, when a module is created, that a plugin provides its storage.

    Raises:
        PluginError: no plugin provides it; the message suggests similar names.
    """
    if isinstance(storage, Storage):
        return
    if isinstance(container, StepContainer):  # other values are rejected when it is joined
        container.state.tables.plugin_manager.storage(storage.backend)
        return
    try:
        _get_plugin_manager().storage(storage.backend)
    except PluginError:  # it may have been installed in the meantime
        _get_plugin_manager.cache_clear()
        _get_plugin_manager().storage(storage.backend)


@functools.cache
def _get_plugin_manager() -> PluginManager:
    return make_plugin_manager()
