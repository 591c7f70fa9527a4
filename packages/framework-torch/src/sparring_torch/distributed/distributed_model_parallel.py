"""`DistributedModelParallel`: trains a model on all ranks of its job.

tables                 sharded over ranks by the container; the exchange moves rows and gradients
ordinary parameters    equal on all ranks: broadcast from rank 0, then updated by averaged gradients; or
                       sharded over ranks by FSDP2
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sparring import ExchangeOptions, PluginManager, StepContainer, join_job, make_plugin_manager
from sparring.adapter import AUTO, PlanLike, resolve_backends, resolve_plan
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.distributed.fully_sharded import FullySharded, check_shardable
from sparring_torch.distributed.gradient_average import GradientAverager, broadcast
from sparring_torch.lookup.row_gradients import Anchor, dense_parameters
from sparring_torch.lookup.train_agent import TrainAgent
from sparring_torch.modules.table_module import (
    list_agents,
    list_table_modules,
    name_tables_by_path,
)
from sparring_torch.modules.table_workloads import list_workloads
from sparring_torch.state.sharded_tensors import shard_like

__all__ = ["DistributedModelParallel", "check_dense"]


@dataclass(frozen=True, slots=True)
class _CollectiveChoice:
    """Name of a plugin, with default options."""

    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)


class DistributedModelParallel(nn.Module):
    """Wraps a model with tables and ordinary parameters, so that it trains on all ranks.

    One line turns a script for one process into one for many. On several ranks, it must come before
    optimizers are created and rows are loaded::

        model = DistributedModelParallel(Model())
        sparse = sparring_torch.Optimizer(model, torch.optim.Adagrad, lr=0.05)
        dense = torch.optim.Adam(model.parameters(), lr=1e-3)

    Under torchrun or mpiexec, the process joins the other ranks; otherwise nothing changes. Each rank
    trains on its own batches, and gradients are averaged over ranks: with losses that are means, W ranks
    with batches of b samples take the same steps as one process with batches of W · b.

    Tables are in a container that is shared with all ranks. Ordinary parameters and buffers are
    broadcast from rank 0. If `torch.distributed` is initialized, or torchrun started the ranks,
    `torch.nn.parallel.DistributedDataParallel` averages their gradients over the default group;
    otherwise the collective of the container does. With ``dense="fsdp2"``, torch's FSDP2 shards the
    parameters, their gradients and their optimizer state.

    Methods such as `parameters` and `state_dict` forward to the module, without a prefix. Rows are not
    parameters and are not included.

    Args:
        module: the model. On several ranks, and with `plan`, its tables must not have rows or an
            `Optimizer` yet, unless they were created with a container.
        container: container of the tables on this rank; None joins the job.
        exchange: options of the exchange of rows and gradients, if the job is joined.
        plan: sharding of tables, if the job is joined: a `sparring.contracts.ShardingPlan`, or a mapping
            from table to kind or `TableSharding`; the same on all ranks. Other tables are
            ``row_wise``. With ``auto``, rank 0 computes a plan from the tables of `module`, the ranks and
            their nodes with sparring-plan, if installed, and logs it. Any other string is the path of a
            file that ``sparring plan`` wrote.
        deadline_seconds: maximum duration of one exchange, if the job is joined.
        find_unused_parameters: passed to `DistributedDataParallel`: whether batches may use only some
            of the parameters.
        dense: ordinary parameters on several ranks: ``ddp`` replicates them; ``fsdp2`` shards them.
        plugin_manager: the plugin manager for backends; None uses the installed plugins.

    Raises:
        InvalidArgumentError: `module` has no tables, or tables in another container; rows or an
            `Optimizer` of the tables were created too early;
            `torch.distributed` has other ranks than the launcher; the plan names an unknown table or
            rank; or `dense` is unknown or not supported with the other arguments.
        UnsupportedError: with ``fsdp2``, a parameter cannot be sharded.
        CapacityError: with ``auto``, the tables do not fit in memory.
        PluginError: no plugin provides a backend or sharding kind, or it cannot run here.
        DeadlineError: not all ranks joined in time.

    Examples:
        >>> import torch
        >>> from sparring_torch import DistributedModelParallel, Embedding, Optimizer
        >>> model = DistributedModelParallel(Embedding(4, name="items"))
        >>> optimizer = Optimizer(model, torch.optim.SGD, lr=0.1)
        >>> model(torch.tensor([7, 8])).shape
        torch.Size([2, 4])
        >>> model.close()
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        container: StepContainer | None = None,
        exchange: ExchangeOptions | None = None,
        plan: PlanLike = None,
        deadline_seconds: float = 60.0,
        find_unused_parameters: bool = False,
        dense: str = "ddp",
        plugin_manager: PluginManager | None = None,
    ) -> None:
        super().__init__()
        check_dense(dense, find_unused_parameters=find_unused_parameters)
        if dense == "fsdp2":
            check_shardable(module)
        agents = list_agents(module)
        name_tables_by_path(module)
        given = {id(each.container): each.container for each in agents if each.is_container_given}
        if container is None and len(given) == 1:
            (container,) = given.values()
        if any(each is not container for each in given.values()):
            raise InvalidArgumentError(
                f"DistributedModelParallel: found {len(given)} containers of the module's tables; "
                "create the tables with one container, or with container=None"
            )
        if container is not None and plan is not None:
            raise InvalidArgumentError(
                "DistributedModelParallel: found a plan, but the tables are in a container, which has "
                "its own plan; pass the plan to the container: StepContainer(plan=…)"
            )
        early = [each for each in agents if each.is_bound and not each.is_container_given]
        if container is None:
            manager = plugin_manager or make_plugin_manager()
            container = _join_container(module, early, manager, exchange, deadline_seconds, plan)
        elif any(each.container is not container for each in early):
            raise _make_order_error(early, "in a given container")
        self.container = container
        for agent in agents:
            agent.join(self.container)
            agent.is_container_given = True
        if plan is not None:
            self.container.check_plan()
        self._wrapped: nn.Module = module
        collective = self.container.collective
        has_parameters = any(each.requires_grad for _, each in dense_parameters(module))
        if collective.world_size == 1:
            return
        is_initialized = dist.is_available() and dist.is_initialized()
        if dense == "fsdp2" and has_parameters:
            if not is_initialized:
                self.container.close()
                raise InvalidArgumentError(
                    "dense='fsdp2' requires the ranks of torch.distributed, which is not initialized "
                    "in this job; start the ranks with torchrun, or use dense='ddp'"
                )
            self.container.quiesce()
            broadcast(module, collective)
            self._wrapped = FullySharded(module)
            return
        if is_initialized and has_parameters:
            anchors = [name for name, each in module.named_parameters() if isinstance(each, Anchor)]
            ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
            ignore(module, anchors)
            self._wrapped = DistributedDataParallel(
                module, find_unused_parameters=find_unused_parameters
            )
            return
        self.container.quiesce()
        broadcast(module, collective)
        self._averaging = GradientAverager(module, collective, self.container.quiesce)

    def __getstate__(self) -> dict[str, Any]:
        num_ranks = self.container.collective.world_size
        if num_ranks > 1:
            raise UnsupportedError(
                f"copy or pickle of DistributedModelParallel: found a model on {num_ranks} ranks, "
                "but only a model on one rank can be copied; save model.state_dict(), and the rows "
                "with container.save(url)"
            )
        return {name: value for name, value in vars(self).items() if name != "container"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.container = list_agents(self.module)[0].container

    @property
    def module(self) -> nn.Module:
        """The wrapped model."""
        wrapped = self._wrapped
        if isinstance(wrapped, (DistributedDataParallel, FullySharded)):
            inner: nn.Module = wrapped.module
            return inner
        return wrapped

    @property
    def sharded(self) -> FullySharded | None:
        """The wrapper that shards ordinary parameters over ranks; None if they are replicated."""
        return self._wrapped if isinstance(self._wrapped, FullySharded) else None

    def undo_sharding(self) -> None:
        """Replaces the module's sharded parameters by full ones. All ranks must call it.

        Their gradients are no longer averaged afterwards.
        """
        if self.sharded is not None:
            self.sharded.undo()
            self._wrapped = self.module

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Returns the output of the model."""
        output = self._wrapped(*arguments, **named)
        if not torch.is_grad_enabled():
            self._release()
        return output

    def _release(self) -> None:
        if self.sharded is not None:
            self.sharded.release()

    def close(self) -> None:
        """Leaves the job and closes the tables' storages. Further calls have no effect."""
        self.container.close()

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Returns the module's `state_dict`; parameters sharded by FSDP2 are `DTensor`s."""
        self._release()
        return self.module.state_dict(*arguments, **named)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Loads the same state on all ranks; with FSDP2, each rank keeps its shard of it.

        `state_dict`, `strict` and `assign` are arguments of `torch.nn.Module.load_state_dict`. If FSDP2
        shards the parameters, `state_dict` may contain full ones.
        """
        self._release()
        if self.sharded is not None:
            own = dict(self.module.named_parameters(remove_duplicate=False))
            state_dict = {
                name: shard_like(each, own.get(name)) for name, each in state_dict.items()
            }
        return self.module.load_state_dict(state_dict, strict=strict, assign=assign)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields the names and parameters of the module."""
        return self.module.named_parameters(prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yields the names and buffers of the module."""
        return self.module.named_buffers(prefix, recurse, remove_duplicate)


def check_dense(dense: str, *, find_unused_parameters: bool = False) -> None:
    """Validates `dense`.

    Raises:
        InvalidArgumentError: it is unknown or not supported with `find_unused_parameters`.
    """
    if dense not in ("ddp", "fsdp2"):
        raise InvalidArgumentError(f"dense: found {dense!r}, expected 'ddp' or 'fsdp2'")
    if dense == "fsdp2" and find_unused_parameters:
        raise InvalidArgumentError(
            "find_unused_parameters requires dense='ddp'; with 'fsdp2', all ranks must use the same "
            "parameters in a batch"
        )


def _make_order_error(early: Sequence[TrainAgent], where: str) -> InvalidArgumentError:
    tables = [name for each in early for name in each.table_names]
    found = [
        name
        for name, is_found in (
            ("an Optimizer", any(each.is_trained for each in early)),
            ("rows", any(each.has_rows for each in early)),
        )
        if is_found
    ]
    return InvalidArgumentError(
        f"DistributedModelParallel: tables {tables} already have {' and '.join(found)}, expected "
        f"tables without them {where}, because they join another container. First wrap the model, "
        "then load rows, then create the Optimizer: model = DistributedModelParallel(model); "
        "model.load_state_dict(state_dict); optimizer = Optimizer(model, …)",
        tables=tables,
    )


def _find_rendezvous() -> str:
    """Returns the rendezvous of the ranks of `torch.distributed`, which is initialized. Processes of
    `torch.multiprocessing.spawn` have no variables of a launcher."""
    found = resolve_backends(AUTO, AUTO, framework="torch").rendezvous
    return "torch" if found == "single" else found


def _join_container(
    module: nn.Module,
    early: Sequence[TrainAgent],
    manager: PluginManager,
    exchange: ExchangeOptions | None,
    deadline_seconds: float,
    plan: PlanLike,
) -> StepContainer:
    """Creates a container in the job of this process.

    Args:
        early: agents whose tables have rows or an `Optimizer`. If this process is the only rank, their
            container becomes the container of the job.
    """
    # If torch.distributed is initialized, the job has the same ranks.
    is_initialized = dist.is_available() and dist.is_initialized()
    job = join_job(
        _CollectiveChoice(_find_rendezvous() if is_initialized else AUTO),
        _CollectiveChoice(AUTO),
        framework="torch",
        default_collective="torch" if is_initialized else None,
        deadline_seconds=deadline_seconds,
        plugin_manager=manager,
    )
    try:
        containers = {id(each.container): each.container for each in early}
        num_ranks = job.rendezvous.shard_map().world_size
        if len(containers) == 1 and num_ranks == 1 and plan is None:
            job.close()
            return next(iter(containers.values()))
        if containers:
            raise _make_order_error(
                early,
                f"on {num_ranks} ranks"
                if num_ranks > 1
                else "with a plan"
                if plan is not None
                else "in several containers",
            )
        return StepContainer(
            collective=job.collective,
            rendezvous=job.rendezvous,
            exchange=exchange,
            plugin_manager=manager,
            plan=resolve_plan(
                plan, lambda: list_workloads(list_table_modules(module)), job, manager
            ),
        )
    except BaseException:
        job.close()  # for example, the plan was rejected
        raise
