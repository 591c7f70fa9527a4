"""`distribute` and `restore`."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparring.adapter import (
    DistributionReport,
    PlanLike,
    StepContainer,
    StorageLike,
    check_choices,
    fill_service,
    service_storage,
    write_rows,
)
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.cut_tensors import cut_as
from sparring_torch.distributed_model_parallel import DistributedModelParallel, check_dense
from sparring_torch.known_optimizers import KnownOptimizer
from sparring_torch.optimizer import Optimizer
from sparring_torch.row_gradients import dense_parameters
from sparring_torch.sparse_adam import over_rows
from sparring_torch.table_module import TableModule
from sparring_torch.transpiler.joint_optimizer import JointOptimizer
from sparring_torch.transpiler.refusals import hyperparameters_of
from sparring_torch.transpiler.replaced_module import ReplacedModule
from sparring_torch.transpiler.scan import Scan, scan
from sparring_torch.transpiler.service import form_of, hyper_of, method_of

__all__ = ["distribute", "distribution_report", "restore"]

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None


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
    check_dense(dense, find_unused_parameters=find_unused_parameters)
    optimizers = _optimizers(optimizer)
    is_cut = dense == "fsdp2"
    scanned = _scan(
        model, optimizers, semantics, keep, is_served=service is not None, is_cut=is_cut
    )
    if service is not None:
        if is_cut:
            raise InvalidArgumentError(
                "distribute: dense='fsdp2' cuts parameters over ranks, and trainers of a service have "
                "none"
            )
        storage = service_storage(service, plan, storage)
    scanned.report.check()
    made = {
        id(each.module): each.kind.make(each.module, each.table, storage) for each in scanned.found
    }
    for each in scanned.found:
        _put(model, each.paths, made[id(each.module)])
    before = [each for _, each in dense_parameters(model)]
    wrapped = None
    try:
        wrapped = DistributedModelParallel(
            model,
            plan=plan,
            container=None if service is None else StepContainer(),
            find_unused_parameters=find_unused_parameters,
            dense=dense,
        )
        rows, known = _row_optimizer(scanned, made, optimizers, is_served=service is not None)
        if service is not None:
            fill_service(
                wrapped.container,
                {
                    table: weight.detach().float().cpu().numpy()
                    for each in scanned.found
                    for table, weight, _ in each.kind.rows(each.module, each.table)
                },
            )
    except BaseException:
        if wrapped is not None:
            wrapped.undo_sharding()
        for each in scanned.found:
            _put(model, each.paths, each.module)
        raise
    _follow(optimizers, before, [each for _, each in dense_parameters(model)])
    with torch.no_grad():
        for each in scanned.found:
            module = made[id(each.module)]
            for table, weight, skipped in each.kind.rows(each.module, each.table):
                if service is None:
                    _write(wrapped.container, table, weight, skipped)
            replaced: Any = ReplacedModule(each.kind, each.module, each.table, each.paths)
            module.replaced, module.why_no_weight = replaced, replaced.why_no_weight
    joint = [*optimizers]
    if rows is not None and scanned.owner is not None:
        number = scanned.owner
        taken = {id(weight) for each in scanned.found for weight in each.kind.weights(each.module)}
        _take_out(optimizers[number], taken)
        joint[number] = JointOptimizer(
            optimizers[number], rows, _places(scanned, rows), scanned.report, known
        )
    is_several = wrapped.container.collective.world_size > 1
    returned: Any = joint if isinstance(optimizer, Sequence) else next(iter(joint), None)
    return wrapped if is_several else model, returned


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
    check_dense(dense)
    is_cut = dense == "fsdp2"
    return _scan(model, _optimizers(optimizer), semantics, keep, is_cut=is_cut).report


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
        _put(inner, replaced.paths, replaced.module)
    return inner


def _optimizers(given: Any) -> list[torch.optim.Optimizer]:
    optimizers = (
        list(given) if isinstance(given, Sequence) else [given] if given is not None else []
    )
    for each in optimizers:
        if not isinstance(each, torch.optim.Optimizer):
            raise InvalidArgumentError(
                f"distribute takes optimizers of torch, found {type(each).__name__}"
            )
    return optimizers


def _scan(
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    semantics: str,
    keep: Collection[str],
    *,
    is_served: bool = False,
    is_cut: bool = False,
) -> Scan:
    if not isinstance(model, nn.Module):
        raise InvalidArgumentError(f"distribute takes a module, found {type(model).__name__}")
    check_choices(semantics, keep)
    return scan(
        model,
        optimizers,
        is_lazy=semantics == "lazy",
        is_served=is_served,
        is_cut=is_cut,
        keep=keep,
    )


def _put(model: nn.Module, paths: Sequence[str], module: nn.Module) -> None:
    for path in paths:
        parent, _, name = path.rpartition(".")
        model.get_submodule(parent)._modules[name] = module


def _row_optimizer(
    scanned: Scan,
    made: dict[int, TableModule],
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    is_served: bool,
) -> tuple[Optimizer | None, KnownOptimizer | None]:
    """The optimizer of all tables that are trained; and, for a service, how it finds its method."""
    if scanned.owner is None:
        return None, None
    modules = [made[id(each.module)] for each in scanned.found if each.is_trained]
    optimizer, places = optimizers[scanned.owner], _place_of(scanned)
    native = over_rows(type(optimizer))
    # One group does for all tables where one has all embeddings.
    place, *others = dict.fromkeys(places.values())
    by_table = {name: hyperparameters_of(optimizer, own) for name, own in places.items() if others}
    given = hyperparameters_of(optimizer, place)
    modules = [*modules, *scanned.tables]
    if not is_served:
        return Optimizer(modules, native, tables=by_table, **given), None
    known = method_of(native, given)
    assert isinstance(known, KnownOptimizer)  # the scan would have refused it
    group = optimizer.param_groups[place]
    method = form_of(known, group).method
    by_table = {
        name: hyper_of(known, optimizer.param_groups[own])
        for name, own in places.items()
        if form_of(known, optimizer.param_groups[own]).method.name == method.name
    }
    if len(by_table) < len(places):
        raise UnsupportedError(
            "distribute: its groups take steps of several update methods, and the tables of one "
            "optimizer of a service have one"
        )
    return Optimizer(modules, method, tables=by_table, **hyper_of(known, group)), known


def _place_of(scanned: Scan) -> dict[str, int]:
    """Table → the group of the user's optimizer that has it."""
    places = {
        table: each.place
        for each in scanned.found
        if each.place is not None
        for table, _, _ in each.kind.rows(each.module, each.table)
    }
    first = next(iter(places.values()), 0)
    for module, place in zip(scanned.tables, scanned.table_places, strict=True):
        places |= dict.fromkeys(module.agent.table_names, first if place is None else place)
    return places


def _places(scanned: Scan, rows: Optimizer) -> list[int]:
    """For each group of `rows`, the one of the user's optimizer that has its embeddings."""
    places = _place_of(scanned)
    first = next(iter(places.values()))  # of all, where `rows` has one group
    return [places.get(group.get("table", ""), first) for group in rows.param_groups]


def _follow(
    optimizers: Sequence[torch.optim.Optimizer],
    before: Sequence[nn.Parameter],
    after: Sequence[nn.Parameter],
) -> None:
    """Gives optimizers the parameters that took the place of others, with this rank's share of state."""
    now = {id(old): new for old, new in zip(before, after, strict=True) if old is not new}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for old in group["params"]:
                if id(old) in now and old in optimizer.state:
                    state = optimizer.state.pop(old)
                    optimizer.state[now[id(old)]] = {
                        name: cut_as(each, now[id(old)]) for name, each in state.items()
                    }
            group["params"] = [now.get(id(each), each) for each in group["params"]]


def _take_out(optimizer: torch.optim.Optimizer, taken: Collection[int]) -> None:
    """Takes parameters out of an optimizer's groups, and their state."""
    for group in optimizer.param_groups:
        kept = [number for number, each in enumerate(group["params"]) if id(each) not in taken]
        for each in group["params"]:
            if id(each) in taken:
                optimizer.state.pop(each, None)
        if "param_names" in group:
            group["param_names"] = [group["param_names"][number] for number in kept]
        group["params"] = [group["params"][number] for number in kept]


def _write(container: StepContainer, table: str, weight: Tensor, skipped: int | None) -> None:
    values = weight.detach().cpu()
    # Of bfloat16 numpy knows nothing.
    values = values.float() if values.dtype is torch.bfloat16 else values
    write_rows(container, table, values.numpy(), skipped)


def _weights(module: TableModule) -> list[Tensor]:
    """Each weight of a replaced module, as it was trained."""
    replaced: ReplacedModule = module.replaced
    weights = []
    for each in replaced.tables:
        values = module.embeddings_of(np.arange(each.num_rows), each.name)
        values = values.to(each.empty.device, each.empty.dtype)
        if each.skipped is not None and each.row is not None:
            values[each.skipped] = each.row
        weights.append(values)
    return weights
