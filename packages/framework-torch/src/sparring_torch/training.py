"""One training run, as `sparring train` asks for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparring import StepContainer, execution
from sparring.config import MatrixFactorizationModel, RunConfig
from sparring.data import ClickBatch, RatingBatch, take
from sparring.errors import ConfigError, DataError, NonFiniteGradientError
from sparring.options import checked_options
from sparring.plugins import PluginManager
from sparring.trace import Trace
from sparring.training import Progress, TrainResult
from sparring_torch.click_task import ClickTask
from sparring_torch.native_optimizers import native_optimizer, row_optimizer
from sparring_torch.optimizer import Optimizer
from sparring_torch.rating_task import RatingTask
from sparring_torch.run_report import RunReport

__all__ = ["train"]

Batch = TypeVar("Batch", ClickBatch, RatingBatch)


class _Task(Protocol[Batch]):
    """What is trained, and on what."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def steps_per_epoch(self) -> int | None: ...

    def batches(self, epoch: int) -> Iterator[Batch]: ...

    def loss(self, batch: Batch) -> Tensor: ...

    def evaluate(self) -> dict[str, float]: ...

    def ids(self, batch: Batch) -> dict[str, npt.NDArray[np.int64]]: ...

    def extra(self) -> dict[str, Any]: ...


def train(config: RunConfig, plugin_manager: PluginManager, progress: Progress) -> TrainResult:
    """Reads the data, trains, evaluates on the test part.

    Writes the report that the configuration asks for.
    The configuration's seed determines everything: the split, the order of samples, all initial
    values. Its threads go to the execution pool and to torch.

    Raises:
        ConfigError: an optimizer that does not exist.
        DataError: data that is missing or malformed.
        NonFiniteGradientError: a gradient holds NaN or infinity, and the policy is to raise.
        PluginError: a storage or the report cannot be had.
    """
    execution.configure(config.threads)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(execution.num_threads())
    try:
        with (
            torch.random.fork_rng(devices=[]),
            _open_container(config, plugin_manager) as container,
            _traced(container, config.report.trace_path),
        ):
            torch.manual_seed(config.seed % 2**63)
            if isinstance(config.model, MatrixFactorizationModel):
                return _Run(
                    config, RatingTask(config, container), progress, plugin_manager
                ).to_end()
            return _Run(config, ClickTask(config, container), progress, plugin_manager).to_end()
    finally:
        torch.set_num_threads(threads_before)


def _open_container(config: RunConfig, plugin_manager: PluginManager) -> StepContainer:
    """Joins the other ranks, if there are any."""
    meeting = plugin_manager.rendezvous(config.rendezvous.backend)
    rendezvous = meeting.factory(checked_options("rendezvous", meeting, config.rendezvous.options))
    group = plugin_manager.collective(config.collective.backend)
    collective = group.factory(
        rendezvous.membership(),
        checked_options("collective", group, config.collective.options),
        config.deadline_seconds,
    )
    return StepContainer(
        collective=collective,
        rendezvous=rendezvous,
        exchange=config.exchange.options(),
        config=config.shared(),
        plugin_manager=plugin_manager,
    )


@contextmanager
def _traced(container: StepContainer, path: str | None) -> Iterator[None]:
    """Writes what all ranks did in the block, if it ends well."""
    if path is None:
        yield
        return
    container.trace = Trace(container.collective.rank)
    yield
    container.trace.write_together(path, container.collective)


class _Run:
    """The loop over steps, and what it needs."""

    def __init__(
        self,
        config: RunConfig,
        task: _Task[Any],
        progress: Progress,
        plugin_manager: PluginManager,
    ) -> None:
        self._config, self._task = config, task
        self._report = RunReport(config, progress, self._total_steps())
        self._progress = self._report.progress
        choice = config.optimizer.sparse
        self._tables = Optimizer(
            task.model,
            row_optimizer(choice.name, "optimizer.sparse.name", plugin_manager),
            non_finite_gradients=config.training.non_finite_gradients,
            tables=choice.tables or None,
            **choice.hyperparameters,
        )
        self._dense = _dense_optimizer(config, task.model)
        self._is_skipping = config.training.non_finite_gradients == "skip"
        self._num_dense_skipped = 0
        self._step = 0
        self._metrics: dict[str, float] = {}
        self._metrics_step = -1

    def to_end(self) -> TrainResult:
        """Trains for as long as the configuration says, and evaluates."""
        start = time.perf_counter()
        self._progress.on_start(self._total_steps())
        interval = self._config.training.evaluation_interval_steps
        for batch in self._batches():
            self._report.on_ids(self._task.ids(batch))
            loss = self._train_on(batch)
            self._step += 1
            self._progress.on_step(self._step, loss, len(batch))
            if self._report.wants_rows(self._step):
                self._report.on_rows(self._step, self._rows())
            if interval is not None and self._step % interval == 0:
                self._evaluate()
        if not self._step:
            raise DataError("the data has no sample to train on; give more, or hold out less")
        if self._metrics_step != self._step:
            self._evaluate()
        self._report.on_rows(self._step, self._rows())
        result = TrainResult(
            metrics=self._metrics,
            rows=self._rows(),
            steps=self._step,
            seconds=time.perf_counter() - start,
            not_admitted=self._not_admitted(),
            extra=self._task.extra() | self._skipped() | self._report_path(),
        )
        self._report.write(result)
        return result

    def _total_steps(self) -> int | None:
        training, per_epoch = self._config.training, self._task.steps_per_epoch
        if per_epoch is None:
            return training.steps
        return min(per_epoch * training.epochs, training.steps or per_epoch * training.epochs)

    def _batches(self) -> Iterator[Any]:
        limit = self._config.training.steps
        for epoch in range(self._config.training.epochs):
            for batch in self._task.batches(epoch):
                if self._step == limit:
                    return
                yield batch

    def _train_on(self, batch: Any) -> float:
        """One step. Returns the mean loss over the batch."""
        if self._dense is not None:
            self._dense.zero_grad()
        total = 0.0
        container = self._tables.container
        for part in _parts(batch, self._config.training.micro_batches):
            with container.span("forward"):
                loss = self._task.loss(part) * (len(part) / len(batch))
            with container.span("backward"):
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        # Looked at before the tables change, so that a step is taken as a whole or not at all.
        broken = self._broken_parameter()
        if broken is not None and not self._is_skipping:
            self._tables.zero_grad()
            raise NonFiniteGradientError(
                f"step {self._step}: the gradient of parameter {broken!r} holds NaN or infinity; "
                "nothing was changed. Lower the learning rate, or choose "
                "training.non_finite_gradients=skip",
                parameter=broken,
                step=self._step,
            )
        self._tables.step()
        if broken is not None:
            self._num_dense_skipped += 1
        elif self._dense is not None:
            self._dense.step()
        return total

    def _broken_parameter(self) -> str | None:
        for name, parameter in self._task.model.named_parameters():
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
                return name
        return None

    def _evaluate(self) -> None:
        model = self._task.model
        model.eval()
        with torch.no_grad():
            self._metrics = self._task.evaluate()
        model.train()
        self._metrics_step = self._step
        self._progress.on_metrics(self._step, self._metrics)

    def _rows(self) -> dict[str, int]:
        container = self._tables.container
        return {name: container.num_rows(name) for name in container.tables}

    def _report_path(self) -> dict[str, str]:
        path = self._config.report.path
        return {} if path is None else {"report_path": path}

    def _not_admitted(self) -> dict[str, int]:
        container = self._tables.container
        return {
            name: container.num_not_admitted(name)
            for name, table in container.tables.items()
            if table.admission is not None
        }

    def _skipped(self) -> dict[str, int]:
        if not self._is_skipping:
            return {}
        return {
            "rows_skipped_non_finite": self._tables.container.counters.rows_skipped_non_finite,
            "dense_steps_skipped_non_finite": self._num_dense_skipped,
        }


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


def _parts(batch: Batch, count: int) -> Iterator[Batch]:
    """Up to `count` micro-batches of nearly one size, none of them empty."""
    ends = [len(batch) * each // count for each in range(count + 1)]
    for begin, end in pairwise(ends):
        if begin < end:
            yield take(batch, slice(begin, end))
