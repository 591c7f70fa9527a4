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
from sparring.joining import join_job
from sparring.plugins import PluginManager
from sparring.ranks import Ranks
from sparring.storage.tiered.counters import sum_over_ranks
from sparring.trace import Trace
from sparring.training import Progress, SilentProgress, TrainResult
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

    def evaluate(self, ranks: Ranks) -> dict[str, float]: ...

    def ids(self, batch: Batch) -> dict[str, npt.NDArray[np.int64]]: ...

    def extra(self) -> dict[str, Any]: ...


def train(config: RunConfig, plugin_manager: PluginManager, progress: Progress) -> TrainResult:
    """Reads the data, trains, evaluates on the test part.

    Writes the report that the configuration asks for.
    The configuration's seed determines everything: the split, the order of samples, all initial
    values. Its threads go to the execution pool and to torch. Every rank of the job calls it; a
    batch is divided among them, and the first rank alone tells of the progress.

    Raises:
        ConfigError: an optimizer that does not exist.
        DataError: data that is missing or malformed.
        NonFiniteGradientError: a gradient holds NaN or infinity, and the policy is to raise.
        PluginError: a storage or the report cannot be had.
    """
    job = join_job(
        config.rendezvous,
        config.collective,
        framework=config.framework,
        deadline_seconds=config.deadline_seconds,
        plugin_manager=plugin_manager,
    )
    threads_before = torch.get_num_threads()
    try:
        with (
            job,
            torch.random.fork_rng(devices=[]),
            StepContainer(
                collective=job.collective,
                rendezvous=job.rendezvous,
                exchange=config.exchange.options(),
                config=config.shared(),
                plugin_manager=plugin_manager,
            ) as container,
            _traced(container, config.report.trace_path),
        ):
            execution.configure(config.threads, sharing=job.membership.local_world_size)
            torch.set_num_threads(execution.num_threads())
            torch.manual_seed(config.seed % 2**63)
            is_rating = isinstance(config.model, MatrixFactorizationModel)
            task = (RatingTask if is_rating else ClickTask)(config, container)
            if job.membership.rank > 0:
                progress = SilentProgress()
            return _Run(config, task, progress, plugin_manager, container).to_end()
    finally:
        torch.set_num_threads(threads_before)


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
        container: StepContainer,
    ) -> None:
        self._config, self._task = config, task
        self._ranks = Ranks(container.collective)
        self._report = RunReport(
            config, progress, self._total_steps(), is_written=self._ranks.is_first
        )
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
            tiers=self._tiers(),
            extra=self._task.extra() | self._skipped() | self._report_path(),
            rank=self._ranks.rank,
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
        """One step of all ranks. Returns the mean loss over the batch."""
        if self._dense is not None:
            self._dense.zero_grad()
        total = 0.0
        for part in _parts(batch, self._config.training.micro_batches):
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
                return name
        return None

    def _evaluate(self) -> None:
        model = self._task.model
        model.eval()
        with torch.no_grad():
            self._metrics = self._task.evaluate(self._ranks)
        model.train()
        self._metrics_step = self._step
        self._progress.on_metrics(self._step, self._metrics)

    def _rows(self) -> dict[str, int]:
        container = self._tables.container
        return self._total({name: container.num_rows(name) for name in container.tables})

    def _total(self, counts: dict[str, int]) -> dict[str, int]:
        """Table → the sum over ranks; a replicated table counts once."""
        tables = self._tables.container.tables
        is_first = self._ranks.is_first
        return self._ranks.total(
            {
                name: count if is_first or not tables[name].is_replicated else 0
                for name, count in counts.items()
            }
        )

    def _report_path(self) -> dict[str, str]:
        path = self._config.report.path
        return {} if path is None else {"report_path": path}

    def _not_admitted(self) -> dict[str, int]:
        container = self._tables.container
        return self._total(
            {
                name: container.num_not_admitted(name)
                for name, table in container.tables.items()
                if table.admission is not None
            }
        )

    def _tiers(self) -> dict[str, list[dict[str, Any]]]:
        """Table → counters of its tiers, summed over ranks."""
        container = self._tables.container
        counted = {name: container.tier_counters(name) for name in container.tables}
        return {
            name: [each.as_dict() for each in sum_over_ranks(tiers, self._ranks)]
            for name, tiers in counted.items()
            if tiers
        }

    def _skipped(self) -> dict[str, int]:
        if not self._is_skipping:
            return {}
        num_rows = self._tables.container.counters.rows_skipped_non_finite
        return {
            **self._ranks.total({"rows_skipped_non_finite": num_rows}),
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
