"""`DistributedModelParallel` and `TrainPipelineSparseDist` as TorchRec's programs call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from sparring.adapter import PlanLike
from sparring.contracts import ShardingPlan
from sparring.errors import InvalidArgumentError
from sparring_torch import distributed_model_parallel
from sparring_torch.combined_optimizer import CombinedOptimizer
from sparring_torch.row_gradients import dense_parameters
from sparring_torch.table_module import agents_of
from sparring_torch.torchrec.in_backward import in_backward_optimizers
from sparring_torch.torchrec.names import WORDS
from sparring_torch.torchrec.sharding_plan import check_sharders
from sparring_torch.train_pipeline import In, Out, TrainPipeline

__all__ = ["DistributedModelParallel", "TrainPipelineSparseDist"]


class DistributedModelParallel(distributed_model_parallel.DistributedModelParallel):
    """`sparring_torch.DistributedModelParallel` with TorchRec's arguments.

    Args:
        module: the model.
        env: None; the job is found by itself.
        device: where ordinary parameters go. Tables stay where their collection said.
        plan: of `EmbeddingShardingPlanner`, or table → its sharding, or ``auto``, as for
            `sparring_torch.DistributedModelParallel`; None: rows are spread over ranks by their ids.
        sharders: those of `get_default_sharders`, or None; tables are sharded either way.
        **settings: those of `sparring_torch.DistributedModelParallel`, as ``exchange``.

    Raises:
        InvalidArgumentError: `env`; sharders or a plan of TorchRec's own classes; ordinary parameters
            on the meta device.
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
        is_foreign = plan is not None and not isinstance(plan, (ShardingPlan, Mapping, str))
        check_sharders(module, sharders)
        for name, given in (("env", env), ("plan", is_foreign)):
            if given:
                raise InvalidArgumentError(f"DistributedModelParallel: {name}: {WORDS[name]}")
        empty = [name for name, each in dense_parameters(module) if each.is_meta]
        if empty:
            raise InvalidArgumentError(
                f"DistributedModelParallel: parameters {empty} have no values on device 'meta'; "
                "make ordinary layers on the device that they train on"
            )
        if device is not None:
            module.to(device)
        super().__init__(module, plan=plan, **settings)
        self._in_backward = in_backward_optimizers(module)

    @property
    def plan(self) -> dict[str, str]:
        """Table → the kind of its sharding, as ``row_wise``."""
        names = [name for agent in agents_of(self.module) for name in agent.table_names]
        return {name: self.container.layout(name).kind for name in names}

    @property
    def fused_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that `apply_optimizer_in_backward` gave to the tables.

        Raises:
            InvalidArgumentError: there is none.
        """
        if not self._in_backward:
            raise InvalidArgumentError(
                "no table has an optimizer in backward; call apply_optimizer_in_backward before "
                "DistributedModelParallel, or make a sparring_torch.Optimizer(model, …) after it"
            )
        if len(self._in_backward) == 1:
            return self._in_backward[0]
        return CombinedOptimizer(self._in_backward)


class TrainPipelineSparseDist(TrainPipeline[In, Out]):
    """`sparring_torch.TrainPipeline` with the order of TorchRec's arguments.

    Args:
        model: see `TrainPipeline`. Rows are updated by `apply_optimizer_in_backward`, or by a
            `sparring_torch.Optimizer` among `optimizer`.
        optimizer: one, or several.
        device: where batches go.
        execute_all_batches: see `TrainPipeline`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        device: torch.device | str,
        execute_all_batches: bool = True,
    ) -> None:
        # Now, so that all tables join one container before the pipeline asks for it.
        in_backward_optimizers(model)
        super().__init__(model, optimizer, device, execute_all_batches=execute_all_batches)
