"""`Distribution`: converts a program for one machine to one for many ranks."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from sparring import StepContainer
from sparring.adapter import (
    DistributionReport,
    PlanLike,
    StorageLike,
    check_choices,
    choose_service_storage,
    fill_service,
    write_rows,
)
from sparring.errors import InvalidArgumentError
from sparring_torch.distributed.distributed_model_parallel import (
    DistributedModelParallel,
    check_dense,
)
from sparring_torch.lookup.row_gradients import dense_parameters
from sparring_torch.modules.table_module import TableModule
from sparring_torch.state.sharded_tensors import shard_like
from sparring_torch.transpiler.joint_optimizer import JointOptimizer
from sparring_torch.transpiler.replaced_module import ReplacedModule, replace_module
from sparring_torch.transpiler.row_optimizer import list_group_positions, row_optimizer
from sparring_torch.transpiler.scan import Scan, scan

__all__ = ["Distribution", "DistributionOptions", "Optimizers"]

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None


@dataclass(frozen=True, slots=True)
class DistributionOptions:
    """Choices of the user; see `distribute`.

    Raises:
        InvalidArgumentError: a value is unknown, or two values exclude each other.
    """

    plan: PlanLike = None
    semantics: str = "exact"
    keep: Collection[str] = ()
    storage: StorageLike = "hkv"
    service: str | os.PathLike[str] | None = None
    find_unused_parameters: bool = False
    dense: str = "ddp"

    def __post_init__(self) -> None:
        check_choices(self.semantics, self.keep)
        check_dense(self.dense, find_unused_parameters=self.find_unused_parameters)
        if self.is_served and self.is_sharded:
            raise InvalidArgumentError(
                "distribute: dense='fsdp2' shards parameters over ranks, but trainers of a service "
                "have no ranks; use dense='ddp'"
            )

    @property
    def is_served(self) -> bool:
        """Whether a service stores the tables."""
        return self.service is not None

    @property
    def is_sharded(self) -> bool:
        """Whether ordinary parameters are sharded over ranks."""
        return self.dense == "fsdp2"

    def table_storage(self) -> StorageLike:
        """Returns the storage of the rows.

        Raises:
            InvalidArgumentError: a plan or a storage was given in addition to a service.
        """
        if self.service is None:
            return self.storage
        return choose_service_storage(self.service, self.plan, self.storage)


class Distribution:
    """Scans a model and its optimizers, checks them, and replaces their parts.

    Args:
        model: a module of torch on one machine.
        optimizer: optimizer of its parameters; or several, or None.
        options: choices of the user.

    Raises:
        InvalidArgumentError: `model` is not a module, or `optimizer` not a torch optimizer.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizers, options: DistributionOptions
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidArgumentError(
                f"distribute: found {type(model).__name__}, expected a torch.nn.Module"
            )
        self._model, self._options = model, options
        self._optimizers = _optimizers(optimizer)
        self._made: dict[int, TableModule] = {}
        """`id` of a replaced module → the module with tables."""

    @cached_property
    def scan(self) -> Scan:
        """Modules to replace, and the report on all modules; has no side effects."""
        options = self._options
        return scan(
            self._model,
            self._optimizers,
            is_lazy=options.semantics == "lazy",
            is_served=options.is_served,
            is_sharded=options.is_sharded,
            keep=options.keep,
        )

    def report(self) -> DistributionReport:
        """Returns what happens to each module and to the optimizer."""
        return self.scan.report

    def check(self) -> None:
        """Rejects a program if any part of it cannot be distributed.

        Raises:
            UnsupportedError: lists all such parts.
        """
        self.report().check()

    def replace(self) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
        """Replaces modules and optimizers; if this fails, the model is unchanged.

        Returns:
            The model, wrapped if there are several ranks, and the optimizers.
        """
        self._put_tables()
        before = [each for _, each in dense_parameters(self._model)]
        wrapped = rows = known = None
        try:
            wrapped = self._wrap()
            if self.scan.owner is not None:
                owner = self._optimizers[self.scan.owner]
                is_served = self._options.is_served
                rows, known = row_optimizer(self.scan, self._made, owner, is_served=is_served)
            if self._options.is_served:
                weights = {table: _as_float32(weight) for table, weight, _ in self._weights()}
                fill_service(wrapped.container, weights)
        except BaseException:
            self._undo(wrapped)
            raise
        after = [each for _, each in dense_parameters(self._model)]
        _follow(self._optimizers, before, after)
        self._move_weights(wrapped.container)
        optimizers = [*self._optimizers]
        if rows is not None and self.scan.owner is not None:
            dense = optimizers[self.scan.owner]
            _take_out(dense, self._taken())
            places = list_group_positions(self.scan, rows)
            optimizers[self.scan.owner] = JointOptimizer(dense, rows, places, self.report(), known)
        is_several = wrapped.container.collective.world_size > 1
        return wrapped if is_several else self._model, optimizers

    def _put_tables(self) -> None:
        """Replaces modules by modules with tables. The tables do not contain rows yet."""
        storage = self._options.table_storage()
        self._made = {
            id(each.module): each.kind.make(each.module, each.table, storage)
            for each in self.scan.found
        }
        for each in self.scan.found:
            replace_module(self._model, each.paths, self._made[id(each.module)])

    def _wrap(self) -> DistributedModelParallel:
        options = self._options
        return DistributedModelParallel(
            self._model,
            plan=options.plan,
            container=StepContainer() if options.is_served else None,
            find_unused_parameters=options.find_unused_parameters,
            dense=options.dense,
        )

    def _undo(self, wrapped: DistributedModelParallel | None) -> None:
        """Restores the modules of torch."""
        if wrapped is not None:
            wrapped.undo_sharding()
        for each in self.scan.found:
            replace_module(self._model, each.paths, each.module)

    def _weights(self) -> Iterator[tuple[str, Tensor, int | None]]:
        """Yields the name of each table, the weight that it replaces, and the number of the row of
        the weight that is not copied, or None."""
        for each in self.scan.found:
            yield from each.kind.rows(each.module, each.table)

    @torch.no_grad()
    def _move_weights(self, container: StepContainer) -> None:
        """Writes weights to tables, and removes them from the replaced modules."""
        if not self._options.is_served:
            for table, weight, skipped in self._weights():
                _write(container, table, weight, skipped)
        for each in self.scan.found:
            module = self._made[id(each.module)]
            replaced: Any = ReplacedModule(each.kind, each.module, each.table, each.paths)
            module.replaced = replaced
            module.missing_weight_reason = replaced.missing_weight_reason

    def _taken(self) -> set[int]:
        """Returns the `id` of each weight that is now in a table."""
        return {id(weight) for each in self.scan.found for weight in each.kind.weights(each.module)}


def _optimizers(given: Any) -> list[torch.optim.Optimizer]:
    optimizers = (
        list(given) if isinstance(given, Sequence) else [given] if given is not None else []
    )
    for each in optimizers:
        if not isinstance(each, torch.optim.Optimizer):
            raise InvalidArgumentError(
                f"distribute: found {type(each).__name__}, expected torch optimizers"
            )
    return optimizers


def _as_float32(weight: Tensor) -> Any:
    return weight.detach().float().cpu().numpy()


def _follow(
    optimizers: Sequence[torch.optim.Optimizer],
    before: Sequence[nn.Parameter],
    after: Sequence[nn.Parameter],
) -> None:
    """Replaces parameters in optimizers, and shards the optimizer state in the same way as the new
    parameters."""
    now = {id(old): new for old, new in zip(before, after, strict=True) if old is not new}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for old in group["params"]:
                if id(old) in now and old in optimizer.state:
                    state = optimizer.state.pop(old)
                    optimizer.state[now[id(old)]] = {
                        name: shard_like(each, now[id(old)]) for name, each in state.items()
                    }
            group["params"] = [now.get(id(each), each) for each in group["params"]]


def _take_out(optimizer: torch.optim.Optimizer, taken: Collection[int]) -> None:
    """Removes parameters and their state from an optimizer."""
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
    # NumPy does not support bfloat16.
    values = values.float() if values.dtype is torch.bfloat16 else values
    write_rows(container, table, values.numpy(), skipped)
