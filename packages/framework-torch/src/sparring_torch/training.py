"""One training run, as `sparring train` asks for it."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from sparring import StepContainer, execution
from sparring.config import MatrixFactorizationModel, RunConfig
from sparring.errors import ConfigError, NonFiniteGradientError
from sparring.plugins import PluginManager
from sparring.ranks import Ranks
from sparring.training import Progress, TrainResult
from sparring.training_loop import Source, micro_batches, run_training
from sparring_torch.click_task import ClickTask
from sparring_torch.native_optimizers import native_optimizer, row_optimizer
from sparring_torch.optimizer import Optimizer
from sparring_torch.rating_task import RatingTask

__all__ = ["train"]


def train(config: RunConfig, plugin_manager: PluginManager, progress: Progress) -> TrainResult:
    """See `sparring.training_loop.run_training`; threads go to torch too.

    Raises:
        ConfigError, DataError, NonFiniteGradientError, PluginError: as there.
    """
    threads_before = torch.get_num_threads()

    def make(container: StepContainer) -> tuple[Source[Any], _Trainer]:
        torch.set_num_threads(execution.num_threads())
        torch.manual_seed(config.seed % 2**63)
        is_rating = isinstance(config.model, MatrixFactorizationModel)
        task = (RatingTask if is_rating else ClickTask)(config, container)
        return task.source, _Trainer(config, task, plugin_manager)

    try:
        with torch.random.fork_rng(devices=[]):
            return run_training(config, plugin_manager, progress, make)
    finally:
        torch.set_num_threads(threads_before)


class _Trainer:
    """A model and its optimizers."""

    def __init__(
        self, config: RunConfig, task: RatingTask | ClickTask, plugin_manager: PluginManager
    ) -> None:
        self._task: Any = task
        choice = config.optimizer.sparse
        self._tables = Optimizer(
            task.model,
            row_optimizer(choice.name, "optimizer.sparse.name", plugin_manager),
            non_finite_gradients=config.training.non_finite_gradients,
            tables=choice.tables or None,
            **choice.hyperparameters,
        )
        self.container = self._tables.container
        self._ranks = Ranks(self.container.collective)
        self._dense = _dense_optimizer(config, task.model)
        self._num_parts = config.training.micro_batches
        self._is_skipping = config.training.non_finite_gradients == "skip"
        self._num_dense_skipped = 0

    def train_on(self, batch: Any, step: int) -> float:
        """See `sparring.training_loop.Trainer`."""
        if self._dense is not None:
            self._dense.zero_grad()
        total = 0.0
        for part in micro_batches(batch, self._num_parts):
            # Gradients are averaged over ranks: the sum over the batch is W times their mean.
            share = self._ranks.world_size / len(batch)
            with self._tables.container.span("forward"):
                loss = self._task.loss(self._ranks.part(part)) * share
            with self._tables.container.span("backward"):
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        total = self._average_gradients(total)
        # Looked at before the tables change, so that a step is taken as a whole or not at all.
        broken = self._broken_parameter()
        if broken is not None and not self._is_skipping:
            self._tables.zero_grad()
            raise NonFiniteGradientError(
                f"step {step}: the gradient of parameter {broken!r} holds NaN or infinity; "
                "nothing was changed. Lower the learning rate, or choose "
                "training.non_finite_gradients=skip",
                parameter=broken,
                step=step,
            )
        self._tables.step()
        if broken is not None:
            self._num_dense_skipped += 1
        elif self._dense is not None:
            self._dense.step()
        return total

    def _average_gradients(self, loss: float) -> float:
        """Of ordinary parameters, over ranks, together with the loss."""
        if self._ranks.world_size == 1:
            return loss
        gradients = [
            parameter.grad
            for parameter in self._task.model.parameters()
            if parameter.grad is not None
        ]
        # float64 holds every gradient, and the loss beside them, without another exchange.
        flat = torch.cat([*(each.reshape(-1).double() for each in gradients), torch.empty(1)])
        flat[-1] = loss
        mean = torch.from_numpy(self._ranks.mean(flat.numpy()))
        for gradient, part in zip(
            gradients, torch.split(mean[:-1], [each.numel() for each in gradients]), strict=True
        ):
            gradient.copy_(part.view_as(gradient))
        return float(mean[-1])

    def _broken_parameter(self) -> str | None:
        for name, parameter in self._task.model.named_parameters():
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
                return str(name)
        return None

    def predict(self, batch: Any) -> npt.NDArray[Any]:
        """See `sparring.training_loop.Trainer`."""
        model = self._task.model
        model.eval()
        with torch.no_grad():
            predicted: npt.NDArray[Any] = self._task.predict(batch)
        model.train()
        return predicted

    def skipped(self) -> dict[str, int]:
        """Steps of ordinary parameters."""
        return {"dense_steps_skipped_non_finite": self._num_dense_skipped}

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}


def _dense_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer | None:
    parameters = list(model.parameters())
    if not parameters:
        return None
    choice = config.optimizer.dense
    native: Any = native_optimizer(choice.name, "optimizer.dense.name")
    try:
        optimizer: torch.optim.Optimizer = native(parameters, **choice.hyperparameters)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"optimizer.dense: {native.__name__} does not accept {choice.hyperparameters}: {error}",
            setting="optimizer.dense",
        ) from error
    return optimizer
