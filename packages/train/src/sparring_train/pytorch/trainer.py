"""Training of a run with PyTorch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparring import PluginManager, State, StepContainer
from sparring.adapter import num_threads
from sparring.errors import InvalidArgumentError, NonFiniteGradientError
from sparring_torch import (
    Optimizer,
    dense_parameters,
    export_program,
    gather_random_state,
    gather_state,
    restore_random_state,
    restore_state,
)
from sparring_train.columns import ColumnBatch
from sparring_train.config.run import RunConfig
from sparring_train.hookspecs import OpenedModel, ProgramRequest, SavedModel
from sparring_train.loop.column_source import ColumnSource
from sparring_train.loop.loop import run_training
from sparring_train.loop.model import StepResult
from sparring_train.loop.saved_model import saved_model
from sparring_train.named_classes import create
from sparring_train.optimizer_names import find_native_class, find_update_method
from sparring_train.pytorch.column_task import ColumnTask
from sparring_train.pytorch.pipelined_steps import Piece, pipelined_steps
from sparring_train.run.ranks import Ranks
from sparring_train.run.result import Progress, TrainResult

__all__ = ["export", "native_optimizer", "open_model", "train"]


def train(config: RunConfig, plugin_manager: PluginManager, progress: Progress) -> TrainResult:
    """See `sparring_train.loop.loop.run_training`. Also sets the number of PyTorch's threads.

    Raises:
        ConfigError, DataError, NonFiniteGradientError, PluginError: see `run_training`.
    """
    threads_before = torch.get_num_threads()

    def make(config: RunConfig, container: StepContainer) -> tuple[ColumnSource, _Trainer]:
        torch.set_num_threads(_threads_of_torch(config, container.collective.world_size))
        torch.manual_seed(config.seed % 2**63)
        task = ColumnTask(config, plugin_manager, container)
        return task.source, _Trainer(config, task, plugin_manager)

    try:
        with torch.random.fork_rng(devices=[]):
            return run_training(config, plugin_manager, progress, make)
    finally:
        torch.set_num_threads(threads_before)


_SMALL_BATCH = 256
"""Number of examples of a forward pass below which PyTorch uses one thread by default."""


def _threads_of_torch(config: RunConfig, world_size: int) -> int:
    """Returns the number of threads for PyTorch.

    A layer on a small batch takes microseconds. On a busy machine, a second thread starts milliseconds
    later, and PyTorch waits for it.
    """
    examples = config.data.batch_size / (config.training.micro_batches * world_size)
    return 1 if config.threads == 0 and examples < _SMALL_BATCH else num_threads()


@contextmanager
def open_model(
    config: RunConfig, plugin_manager: PluginManager, saved: SavedModel
) -> Iterator[OpenedModel]:
    """See `sparring_train.loop.saved_model.saved_model`. Also sets the number of PyTorch's threads."""
    threads_before = torch.get_num_threads()
    try:
        with _saved_task(config, plugin_manager, saved.snapshot_url, saved.rows) as task:
            # The pool has the number of threads of the configuration now.
            torch.set_num_threads(num_threads())
            yield _OpenedModel(task)
    finally:
        torch.set_num_threads(threads_before)


@dataclass(frozen=True, slots=True)
class _OpenedModel:
    """A saved model for predictions."""

    task: ColumnTask

    @property
    def source(self) -> ColumnSource:
        return self.task.source

    def predict(self, batch: ColumnBatch) -> Any:
        """See `OpenedModel.predict`."""
        return _predicted(self.task, batch)


def export(config: RunConfig, plugin_manager: PluginManager, request: ProgramRequest) -> None:
    """Exports the model of a snapshot as a program; see `sparring_torch.export_program`.

    Raises:
        ConfigError, DataError: see `run_training`.
        InvalidArgumentError: the parameters belong to a different model, or the bundle exists.
        SnapshotError: the snapshot was not written by this framework, or is damaged.
        ProgramError, UnsupportedError: see `export_program`.
    """
    # The program reads rows from its serving snapshot, so they are not loaded here.
    with _saved_task(config, plugin_manager, request.snapshot_url, None) as task:
        batch = torch.export.Dim.AUTO
        example = task.program_inputs(2)
        export_program(
            task.program(),
            example,
            request.bundle,
            served=request.served,
            follow=request.follow,
            dynamic_shapes=tuple({0: batch} for _ in example),
            trained=task.model,
        )


@contextmanager
def _saved_task(
    config: RunConfig,
    plugin_manager: PluginManager,
    snapshot_url: str,
    rows: Literal["snapshot", "storage"] | None,
) -> Iterator[ColumnTask]:
    def make(chosen: RunConfig, container: StepContainer) -> ColumnTask:
        return ColumnTask(chosen, plugin_manager, container, is_saved=True)

    def restore(task: ColumnTask, state: State) -> None:
        try:
            restore_state(state, model=task.model)
        except RuntimeError as error:  # Raised by PyTorch.
            raise InvalidArgumentError(
                f"loading {snapshot_url} failed: its parameters do not fit the configured model: "
                f"{error}; use the configuration of the run"
            ) from error

    with (
        torch.random.fork_rng(devices=[]),
        saved_model(config, plugin_manager, snapshot_url, rows, make, restore) as task,
    ):
        yield task


def _predicted(task: ColumnTask, batch: ColumnBatch) -> npt.NDArray[Any]:
    """Returns predictions for a batch, and leaves the model in training mode."""
    task.model.eval()
    with torch.no_grad():
        predicted: npt.NDArray[Any] = task.predict(batch)
    task.model.train()
    return predicted


class _Trainer:
    """A model and its optimizers."""

    def __init__(self, config: RunConfig, task: ColumnTask, plugin_manager: PluginManager) -> None:
        self._task = task
        choice = config.optimizer.sparse
        row = find_update_method(
            choice.name,
            plugin_manager,
            lambda: native_optimizer(choice.name, "optimizer.sparse.name"),
        )
        self._tables = Optimizer(
            task.model,
            row,
            non_finite_gradients=config.training.non_finite_gradients,
            tables=choice.tables or None,
            update=choice.update,
            **choice.hyperparameters,
        )
        self.container = self._tables.container
        self._ranks = Ranks(self.container.collective, self.container.quiesce)
        self._dense = _dense_optimizer(config, task.model)
        self._num_parts = config.training.micro_batches
        self._is_skipping = config.training.non_finite_gradients == "skip"
        self._is_pipelined = config.training.pipeline
        self._num_dense_skipped = 0
        self._loss: Tensor | float = 0.0
        self._stop = threading.Event()
        self._is_stopping = False

    def steps(self, batches: Iterator[Any], stop: threading.Event) -> Iterator[StepResult]:
        """See `sparring_train.loop.model.Trainer`."""
        self._stop = stop
        return self._pipelined(batches) if self._is_pipelined else self._one_by_one(batches)

    def _one_by_one(self, batches: Iterator[Any]) -> Iterator[StepResult]:
        for batch in batches:
            self.zero_grad()
            for piece in self._pieces(batch):
                if not piece.num_samples:
                    continue
                with self.container.span("forward"):
                    loss = self.loss(piece)
                with self.container.span("backward"):
                    loss.backward()  # type: ignore[no-untyped-call]
            self.step()
            yield self._result(batch)

    def _pipelined(self, batches: Iterator[Any]) -> Iterator[StepResult]:
        """Makes the same steps, and prefetches the lookups of the next batch."""
        begun: deque[Any] = deque()

        def pieces() -> Iterator[Piece]:
            for batch in batches:
                begun.append(batch)
                yield from self._pieces(batch)

        for _ in pipelined_steps(self, self._task.model, pieces(), micro_batches=self._num_parts):
            yield self._result(begun.popleft())

    def _result(self, batch: Any) -> StepResult:
        outputs = self._task.take_outputs()
        return StepResult(batch, float(self._loss), batch.num_examples, self._is_stopping, outputs)

    def _pieces(self, batch: Any) -> Iterator[Piece]:
        """Yields this rank's part of each micro-batch."""
        # Gradients are averaged over ranks, so the sum over the batch is W times their mean.
        share = self._ranks.world_size / batch.num_examples
        for part in batch.split(self._num_parts):
            yield Piece(self._task.training_inputs(part), share, part.num_examples)

    def loss(self, piece: Piece) -> Tensor:
        """Returns this rank's share of the loss of a step, and adds it to the step's loss."""
        loss: Tensor = self._task.loss(piece.inputs) * piece.share
        # Added up in float64 on its device, so that no part of a step waits for a GPU.
        self._loss = self._loss + (
            loss.item() if loss.device.type == "cpu" else loss.double().detach()
        )
        return loss

    def zero_grad(self) -> None:
        """Starts a step."""
        self._tables.zero_grad()
        if self._dense is not None:
            self._dense.zero_grad()
        self._loss = 0.0

    def step(self) -> None:
        """Applies the gradients of all micro-batches, on all ranks."""
        self._loss, self._is_stopping = self._average_gradients(float(self._loss))
        # Checked before the tables change, so that a step is applied completely or not at all.
        broken = self._broken_parameter()
        if broken is not None and not self._is_skipping:
            self._tables.zero_grad()
            step = self.container.counters.steps
            raise NonFiniteGradientError(
                f"step {step}: the gradient of parameter {broken!r} contains NaN or infinity; "
                "nothing was changed. Lower the learning rate, or set "
                "training.non_finite_gradients=skip",
                parameter=broken,
                step=step,
            )
        self._tables.step()
        if broken is not None:
            self._num_dense_skipped += 1
        elif self._dense is not None:
            with self.container.span("dense optimizer"):
                self._dense.step()

    def _average_gradients(self, loss: float) -> tuple[float, bool]:
        """Averages gradients of ordinary parameters and the loss over ranks in one exchange.

        Returns:
            The average loss, and whether any rank should stop.
        """
        if self._ranks.world_size == 1:
            return loss, self._stop.is_set()
        gradients = [
            parameter.grad
            for _, parameter in dense_parameters(self._task.model)
            if parameter.grad is not None
        ]
        arrays = [each.double().cpu().numpy() for each in gradients]
        with self.container.span("average gradients"):
            own = np.array([loss, self._stop.is_set()])
            *means, (mean_loss, stopping) = self._ranks.means([*arrays, own])
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(torch.from_numpy(mean))
        return float(mean_loss), bool(stopping > 0)

    def _broken_parameter(self) -> str | None:
        model: nn.Module = self._task.model
        gradients = {
            name: parameter.grad
            for name, parameter in dense_parameters(model)
            if parameter.grad is not None
        }
        if not gradients:
            return None
        # Checks all gradients at once, which waits for a GPU once.
        is_finite = torch.stack([each.isfinite().all() for each in gradients.values()]).tolist()
        return next(
            (name for name, whole in zip(gradients, is_finite, strict=True) if not whole), None
        )

    def predict(self, batch: Any) -> npt.NDArray[Any]:
        """See `sparring_train.loop.model.Trainer`."""
        return _predicted(self._task, batch)

    def states(self) -> dict[str, State]:
        """See `sparring_train.loop.model.Trainer`."""
        return {
            "torch": gather_state(**self._parts_with_state()),
            "random": gather_random_state(),
            "skipped": State({"num_dense": self._num_dense_skipped}),
            **self._task.states(),
        }

    def restore(self, states: Mapping[str, State]) -> None:
        """See `sparring_train.loop.model.Trainer`."""
        chosen = [_hyperparameters(each) for each in self._optimizers()]
        restore_state(states["torch"], **self._parts_with_state())
        # The configured hyperparameters replace those in the snapshot.
        for optimizer, groups in zip(self._optimizers(), chosen, strict=True):
            for group, hyperparameters in zip(optimizer.param_groups, groups, strict=True):
                group.update(hyperparameters)
        restore_random_state(states["random"])
        self._task.restore(states)
        self._num_dense_skipped = states["skipped"].values["num_dense"]

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [self._tables] if self._dense is None else [self._tables, self._dense]

    def _parts_with_state(self) -> dict[str, Any]:
        parts: dict[str, Any] = {"model": self._task.model, "tables": self._tables}
        return parts if self._dense is None else parts | {"dense": self._dense}

    def skipped(self) -> dict[str, int]:
        """Returns the number of skipped steps of ordinary parameters."""
        return {"dense_steps_skipped_non_finite": self._num_dense_skipped}

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}


def _hyperparameters(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Returns the hyperparameters of each parameter group."""
    return [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]


def _dense_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer | None:
    parameters = [each for _, each in dense_parameters(model)]
    if not parameters:
        return None
    choice = config.optimizer.dense
    native = native_optimizer(choice.name, "optimizer.dense.name")
    options = choice.hyperparameters
    return create(native, native.__name__, "optimizer.dense", parameters, options=options)


def native_optimizer(name: str, setting: str) -> type[torch.optim.Optimizer]:
    """Returns the class that a configuration names; see `find_native_class`.

    Raises:
        ConfigError: there is no such optimizer.
    """
    return find_native_class(name, torch.optim, torch.optim.Optimizer, setting)
