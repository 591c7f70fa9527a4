"""`DistributedModelParallel` and `TrainPipelineSparseDist` with TorchRec's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from sparring import StepContainer, contracts
from sparring.adapter import PlanLike
from sparring.errors import InvalidArgumentError
from sparring_torch.distributed import distributed_model_parallel
from sparring_torch.lookup.row_gradients import dense_parameters
from sparring_torch.modules.table_module import TableModule, list_agents
from sparring_torch.optim.combined_optimizer import CombinedOptimizer
from sparring_torch.pipeline.train_pipeline import In, Out, TrainPipeline
from sparring_torch.torchrec.fused_params import apply_fused_params
from sparring_torch.torchrec.in_backward import in_backward_optimizers
from sparring_torch.torchrec.names import ENV, PLAN
from sparring_torch.torchrec.sharding_plan import (
    ParameterSharding,
    ShardingPlan,
    check_sharders,
)
from sparring_torch.torchrec.wire import find_exchange_dtypes

__all__ = ["DistributedModelParallel", "TrainPipelineSparseDist"]


class DistributedModelParallel(distributed_model_parallel.DistributedModelParallel):
    """`sparring_torch.DistributedModelParallel` with TorchRec's arguments.

    Args:
        module: the model.
        env: must be None, because the job is detected.
        device: device of ordinary parameters. Tables stay on the device of their collection.
        plan: a plan of `EmbeddingShardingPlanner`, a mapping from table to sharding, or ``auto``; see
            `sparring_torch.DistributedModelParallel`. None distributes rows over ranks by their ids.
        sharders: sharders of `get_default_sharders`, or None; tables are sharded in both cases. Their
            `fused_params` and `qcomm_codecs_registry` are used.
        **settings: arguments of `sparring_torch.DistributedModelParallel`, for example ``exchange``.

    Raises:
        InvalidArgumentError: `env` is given, sharders or the plan are TorchRec's own classes, or
            ordinary parameters are on the meta device.
    """

    def __init__(
        self,
        module: nn.Module,
        env: None = None,
        device: torch.device | str | None = None,
        plan: PlanLike = None,
        sharders: Sequence[Any] | None = None,
        **settings: Any,
    ) -> None:
        is_foreign = plan is not None and not isinstance(
            plan, (contracts.ShardingPlan, Mapping, str)
        )
        check_sharders(module, sharders)
        for name, given, words in (("env", env, ENV), ("plan", is_foreign, PLAN)):
            if given:
                raise InvalidArgumentError(f"DistributedModelParallel: {name}: {words}")
        empty = [name for name, each in dense_parameters(module) if each.is_meta]
        if empty:
            raise InvalidArgumentError(
                f"DistributedModelParallel: parameters {empty} have no values on device 'meta'; "
                "create ordinary layers on the device on which they are trained"
            )
        if device is not None:
            module.to(device)
        exchange = find_exchange_dtypes([each.qcomm_codecs_registry for each in sharders or ()])
        if exchange is not None and settings.setdefault("exchange", exchange) != exchange:
            raise InvalidArgumentError(
                "DistributedModelParallel: found an exchange, and sharders with a different "
                "qcomm_codecs_registry; give only one of them"
            )
        for each in sharders or ():
            if each.fused_params:
                apply_fused_params(module, each.module_type, each.fused_params)
        super().__init__(module, plan=plan, **settings)
        self._in_backward = in_backward_optimizers(module)

    @property
    def plan(self) -> dict[str, str]:
        """Table → sharding kind, for example ``row_wise``."""
        names = [name for agent in list_agents(self.module) for name in agent.table_names]
        return {name: self.container.layout(name).kind for name in names}

    @property
    def _plan(self) -> ShardingPlan:
        """The plan by module and table. TorchRec uses the same name."""
        container = self.container
        return ShardingPlan(
            {
                path: {
                    name: ParameterSharding.of(
                        _sharding_of(container, name), container.collective.world_size
                    )
                    for name in each.agent.table_names
                }
                for path, each in self.module.named_modules()
                if isinstance(each, TableModule)
            }
        )

    @property
    def fused_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the tables from `apply_optimizer_in_backward`.

        Raises:
            InvalidArgumentError: there is none.
        """
        if not self._in_backward:
            raise InvalidArgumentError(
                "fused_optimizer: found no optimizer in backward; call apply_optimizer_in_backward "
                "before DistributedModelParallel, or create a sparring_torch.Optimizer(model, …) "
                "after it"
            )
        if len(self._in_backward) == 1:
            return self._in_backward[0]
        return CombinedOptimizer(self._in_backward)


def _sharding_of(container: StepContainer, table: str) -> contracts.TableSharding:
    layout = container.layout(table)
    blocks = np.atleast_2d(layout.owners)
    # For each block, its ranks in the order of their partitions.
    ranks = [rank for block in blocks for rank in dict.fromkeys(block.tolist())]
    columns = layout.num_blocks if layout.num_blocks > 1 else None
    return contracts.TableSharding(layout.kind, tuple(ranks), layout.transfer, columns)


class TrainPipelineSparseDist(TrainPipeline[In, Out]):
    """`sparring_torch.TrainPipeline` with TorchRec's order of arguments.

    Args:
        model: see `TrainPipeline`. Rows are updated by `apply_optimizer_in_backward`, or by a
            `sparring_torch.Optimizer` in `optimizer`.
        optimizer: one optimizer, or several.
        device: device to which batches are moved.
        execute_all_batches: see `TrainPipeline`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        device: torch.device | str,
        execute_all_batches: bool = True,
    ) -> None:
        self._optimizer = optimizer
        # Creates them now, so that all tables join one container before the pipeline needs it.
        in_backward_optimizers(model)
        super().__init__(model, optimizer, device, execute_all_batches=execute_all_batches)

    @property
    def _connected(self) -> bool:
        """Whether a batch was already taken from the iterator. TorchRec uses the same name.

        Setting it to False drops that batch, so that the next call starts with its iterator.
        """
        return self._pending is not None

    @_connected.setter
    def _connected(self, value: bool) -> None:
        if value:
            raise InvalidArgumentError(
                "TrainPipelineSparseDist: found _connected = True; only False is supported, which "
                "drops the pending batch"
            )
        self.drop_pending()
