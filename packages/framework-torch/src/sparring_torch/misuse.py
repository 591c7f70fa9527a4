"""Uses of torch that would lose or bake in rows without a word: refused, with the line to write."""

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
    "reject_proxy",
    "reject_scripting",
    "reject_tracing",
    "warn_about_bound",
]


def check_has_optimizer(tables: Sequence[str], container: StepContainer) -> None:
    """Refuses a second pass of training where no optimizer was made and no step was applied.

    Raises:
        InvalidArgumentError: gradients of the first pass wait, and nothing will take them.
    """
    waiting = [table for table in tables if container.resources.has_gradient(table)]
    if waiting:
        raise InvalidArgumentError(
            f"table{'s' * (len(waiting) > 1)} {', '.join(map(repr, waiting))}: rows got gradients, and "
            "no optimizer takes them: rows are no parameters, and no row would be trained. Make one "
            "for them besides that of the parameters, and call step() of both: "
            "sparring_torch.Optimizer(model, torch.optim.Adam, lr=1e-3); or look up under "
            "torch.no_grad()",
            tables=waiting,
        )


def check_ranks(tables: Sequence[str], container: StepContainer) -> None:
    """Refuses to train tables of one rank where `torch.distributed` has several.

    Raises:
        InvalidArgumentError: with the line to write.
    """
    if not (dist.is_available() and dist.is_initialized()) or container.collective.world_size > 1:
        return
    size = dist.get_world_size()
    if size > 1:
        raise InvalidArgumentError(
            f"torch.distributed has {size} ranks, but the rows of {', '.join(map(repr, tables))} are "
            "this rank's alone: each rank would train rows of its own, and they would drift apart. "
            "Wrap the model before optimizers are made, in place of DistributedDataParallel, which it "
            "contains: model = sparring_torch.DistributedModelParallel(model). If each rank is to "
            "train tables of its own, make modules with container=sparring.StepContainer()",
            tables=list(tables),
        )


def reject_tracing(tables: Sequence[str]) -> NoReturn:
    """Refuses `torch.jit.trace`.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        f"torch.jit.trace keeps what one batch looked up in {', '.join(map(repr, tables))}: the trace "
        "would return the rows of these ids for any ids. Export with torch.export.export, or trace "
        "the part of the model that takes embeddings",
        tables=list(tables),
    )


def reject_proxy(given: object, owner: str) -> None:
    """Refuses the placeholder with which `torch.fx.symbolic_trace` calls a module.

    Raises:
        UnsupportedError: if `given` is one.
    """
    if isinstance(given, torch.fx.Proxy):
        raise UnsupportedError(
            f"{owner}: found a torch.fx.Proxy: torch.fx.symbolic_trace does not see into a lookup. Use "
            "torch.export.export; or trace with a subclass of torch.fx.Tracer whose is_leaf_module "
            "returns True for modules of sparring_torch"
        )


def reject_scripting(owner: str) -> NoReturn:
    """Refuses `torch.jit.script`.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        f"torch.jit.script cannot compile {owner}, whose rows are in storages; export the model with "
        "torch.export.export or sparring_torch.export_program, or script the part of the model that "
        "takes embeddings"
    )


@functools.cache
def _warn_about_bound_once() -> None:
    """Keeps the first call in mind; see `warn_about_bound`."""


def warn_about_bound(table: str, num_embeddings: int) -> None:
    """Says, once in a process, that `num_embeddings` is no range of ids."""
    if _warn_about_bound_once.cache_info().currsize:
        return
    _warn_about_bound_once()
    warnings.warn(
        f"table {table!r}: num_embeddings={num_embeddings} is the most rows that its storage on a rank "
        "holds, and a step that needs more raises CapacityError. It is no range of ids, as in "
        "torch.nn and TorchRec: ids may be any int64, and tables grow with them. Leave it out to set "
        "no bound (said once)",
        stacklevel=2,
    )


def check_backend(storage: StorageChoice | Storage, container: StepContainer | None) -> None:
    """Refuses a storage that no plugin offers, when a module is made.

    Raises:
        PluginError: with the name that was meant.
    """
    if isinstance(storage, Storage):
        return
    if isinstance(container, StepContainer):  # anything else is refused when it is joined
        container.state.tables.plugin_manager.storage(storage.backend)
        return
    try:
        _get_plugin_manager().storage(storage.backend)
    except PluginError:  # it may have been installed since
        _get_plugin_manager.cache_clear()
        _get_plugin_manager().storage(storage.backend)


@functools.cache
def _get_plugin_manager() -> PluginManager:
    return make_plugin_manager()
