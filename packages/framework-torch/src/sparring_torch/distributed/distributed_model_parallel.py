"""`DistributedModelParallel`: a model on all ranks of its job.

tables                 sharded over ranks by the container; the exchange moves rows and gradients
ordinary parameters    alike on all ranks: from rank 0 at first, then by averaged gradients; or cut over
                       ranks by FSDP2
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sparring import ExchangeOptions, PluginManager, StepContainer, join_job, make_plugin_manager
from sparring.adapter import AUTO, PlanLike, resolve_plan
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.distributed.fully_sharded import FullySharded, check_shardable
from sparring_torch.distributed.gradient_average import GradientAverager, broadcast
from sparring_torch.lookup.row_gradients import Anchor, dense_parameters
from sparring_torch.modules.table_module import list_agents, list_table_modules
from sparring_torch.modules.table_workloads import list_workloads
from sparring_torch.state.sharded_tensors import shard_like

__all__ = ["DistributedModelParallel", "check_dense"]


@dataclass(frozen=True, slots=True)
class _CollectiveChoice:
    """A backend with its defaults."""

    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)


class DistributedModelParallel(nn.Module):
    """Wraps a model that holds tables and ordinary parameters, so that it trains on all ranks.

    A script for one process becomes one for many by one line, before optimizers are made::

        model = DistributedModelParallel(Model())
        sparse = sparring_torch.Optimizer(model, torch.optim.Adagrad, lr=0.05)
        dense = torch.optim.Adam(model.parameters(), lr=1e-3)

    Started by torchrun or mpiexec, it joins the others; started alone, it changes nothing. Each rank
    trains on its own batches, and gradients are averaged over ranks: with losses that are
    means, W ranks with batches of b samples take the steps of one process with batches of W · b.

    Tables stay in the container that they share with all ranks. Ordinary parameters and buffers
    are those of rank 0 at first. Where `torch.distributed` is initialised, or torchrun started the
    ranks, `torch.nn.parallel.DistributedDataParallel` averages their gradients over the default
    group; otherwise the collective of the container does. With ``dense="fsdp2"``, FSDP2 of torch keeps a
    share of each on each rank, of its gradient and its optimizer state too.

    `parameters`, `state_dict` and the like are those of the module, without a prefix; rows are no
    parameters and are not among them.

    Args:
        module: the model; its tables hold no rows yet, or it was made with `container`.
        container: where its tables live on this rank; None joins the job.
        exchange: how rows and gradients travel, if the job is joined.
        plan: how tables are sharded, if the job is joined: a `sparring.contracts.ShardingPlan`, or
            table → kind or `TableSharding`; the same on all ranks. Tables that it does not name are
            ``row_wise``. ``auto``: rank 0 makes it from the tables of `module`, the ranks and their
            nodes, by sparring-plan where that is installed; a logger of this package's says it. Other
            text is the path of a file of ``sparring plan``.
        deadline_seconds: the longest that one exchange may take, if the job is joined.
        find_unused_parameters: for `DistributedDataParallel`: some parameters take part in some
            batches only.
        dense: ordinary parameters on several ranks: ``ddp``: whole on each; ``fsdp2``: cut over them.
        plugin_manager: where backends are looked up; None looks through the installed plugins.

    Raises:
        InvalidArgumentError: no tables in `module`; its tables live in another container; the
            ranks of `torch.distributed` are others than those of the launcher; the plan names
            another table or rank; or another value of `dense`, or one that does not go with the rest.
        UnsupportedError: ``fsdp2``, and a parameter that cannot be cut.
        CapacityError: ``auto``, and the tables do not fit the memory.
        PluginError: a backend or sharding kind that no plugin offers, or that cannot run here.
        DeadlineError: not all ranks came.
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
        given = {id(each.container): each.container for each in agents if each.is_container_given}
        if container is None and len(given) == 1:
            (container,) = given.values()
        if any(each is not container for each in given.values()):
            raise InvalidArgumentError(
                f"DistributedModelParallel: the tables of this module were given {len(given)} "
                "containers; make them with one, or with none: container=None"
            )
        if container is not None and plan is not None:
            raise InvalidArgumentError(
                "DistributedModelParallel: the tables live in a container that was given, which has a "
                "plan of its own; give it the plan: StepContainer(plan=…)"
            )
        manager = plugin_manager or make_plugin_manager()
        self.container = container or _join_container(
            module, manager, exchange, deadline_seconds, plan
        )
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
                    "dense='fsdp2' needs the ranks of torch.distributed, and this job has others; start "
                    "them by torchrun, or give dense='ddp'"
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
                f"copy or pickle of DistributedModelParallel: found a model on {num_ranks} ranks, and "
                "only a model on one rank can be copied whole; save model.state_dict(), with the "
                "rows by container.save(url)"
            )
        return {name: value for name, value in vars(self).items() if name != "container"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.container = list_agents(self.module)[0].container

    @property
    def module(self) -> nn.Module:
        """The model itself, as it was given."""
        wrapped = self._wrapped
        if isinstance(wrapped, (DistributedDataParallel, FullySharded)):
            inner: nn.Module = wrapped.module
            return inner
        return wrapped

    @property
    def sharded(self) -> FullySharded | None:
        """The wrapper that cuts ordinary parameters over ranks; None: each rank has all of them."""
        return self._wrapped if isinstance(self._wrapped, FullySharded) else None

    def undo_sharding(self) -> None:
        """Gives ordinary parameters back to the module, whole and plain. All ranks call it.

        They are no longer averaged then.
        """
        if self.sharded is not None:
            self.sharded.undo()
            self._wrapped = self.module

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Output of the model."""
        output = self._wrapped(*arguments, **named)
        if not torch.is_grad_enabled():
            self._release()
        return output

    def _release(self) -> None:
        if self.sharded is not None:
            self.sharded.release()

    def close(self) -> None:
        """Leaves the job and closes the tables' storages. A second call does nothing."""
        self.container.close()

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """That of the module. Of parameters that FSDP2 cut it has `DTensor`s."""
        self._release()
        return self.module.state_dict(*arguments, **named)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Into the module; all ranks load the same. Where FSDP2 cuts parameters, whole ones are cut."""
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
        """Those of the module."""
        return self.module.named_parameters(prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Those of the module."""
        return self.module.named_buffers(prefix, recurse, remove_duplicate)


def check_dense(dense: str, *, find_unused_parameters: bool = False) -> None:
    """Refuses what `dense` cannot be.

    Raises:
        InvalidArgumentError: always then.
    """
    if dense not in ("ddp", "fsdp2"):
        raise InvalidArgumentError(f"dense: found {dense!r}; give 'ddp' or 'fsdp2'")
    if dense == "fsdp2" and find_unused_parameters:
        raise InvalidArgumentError(
            "find_unused_parameters is for dense='ddp'; with 'fsdp2' each parameter takes part in a "
            "batch on all ranks or on none"
        )


def _join_container(
    module: nn.Module,
    manager: PluginManager,
    exchange: ExchangeOptions | None,
    deadline_seconds: float,
    plan: PlanLike,
) -> StepContainer:
    """A container in the job that this process was started for."""
    # Where torch.distributed is initialised, its ranks are the job's.
    is_initialized = dist.is_available() and dist.is_initialized()
    job = join_job(
        _CollectiveChoice("environment" if is_initialized else AUTO),
        _CollectiveChoice("torch" if is_initialized else AUTO),
        framework="torch",
        deadline_seconds=deadline_seconds,
        plugin_manager=manager,
    )
    try:
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
        job.close()  # the plan was refused
        raise
