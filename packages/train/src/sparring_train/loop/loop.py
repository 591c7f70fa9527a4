"""The training loop of `sparring train`, from reading the data to the report.

The file is long because all parts of the loop change the state of the run.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain, islice, repeat
from typing import Any

import numpy as np

from sparring import LoadResult, PluginManager, Snapshot, State, StepContainer, join_job
from sparring.adapter import configure_pool
from sparring.errors import ConfigError, DataError
from sparring_train.columns import ColumnBatch
from sparring_train.config.run import RunConfig
from sparring_train.data.stream.cut_log import CutLog
from sparring_train.live.evaluation import LiveEvaluation, is_evaluated
from sparring_train.live.publishing import RunPublisher
from sparring_train.live.row_ages import RowAges
from sparring_train.live.run_gate import RunGate
from sparring_train.loop.best_step import BestStep
from sparring_train.loop.column_source import ColumnSource
from sparring_train.loop.kept_best import BestStepSnapshots, kept_best, make_best_step
from sparring_train.loop.model import Trainer
from sparring_train.loop.output_check import check_outputs
from sparring_train.loop.position import POSITION, Position, mark_epoch_ends, read_position
from sparring_train.loop.returns import RunReturns
from sparring_train.loop.run_counts import RunCounts
from sparring_train.loop.run_metrics import metrics_output, trace_output
from sparring_train.loop.run_report import RunReport
from sparring_train.report.host import peak_memory_bytes
from sparring_train.run.change_notes import RunNotes
from sparring_train.run.job_plan import load_run_plan
from sparring_train.run.logs import log_output
from sparring_train.run.pinned_data import pin_data
from sparring_train.run.ranks import Ranks
from sparring_train.run.result import OtherRankProgress, Progress, TrainResult
from sparring_train.run.same_run import ORIGINS, PINNED, check_same_data, check_same_origins
from sparring_train.run.snapshots import RunSnapshots
from sparring_train.run.termination import describe_sigterm, note_sigterm
from sparring_train.trackers.run_trackers import RunTrackers, open_trackers

__all__ = ["run_training"]

_VALIDATION = "validation"
"""Name of the state that contains the best step so far."""

_END: Any = object()
"""Marks the end of batches."""

MakeTrainer = Callable[[RunConfig, StepContainer], "tuple[ColumnSource, Trainer]"]


def run_training(
    config: RunConfig, plugin_manager: PluginManager, progress: Progress, make: MakeTrainer
) -> TrainResult:
    """Reads the data, trains, and evaluates on the test examples.

    Writes the report and the metrics that are configured. The seed determines the split, the order of
    samples and all initial values. `threads` configures the execution pool. Every rank of the job calls
    this function; ranks share each batch, and only the first one reports progress.

    Args:
        config: configuration of the run.
        plugin_manager: finds backends.
        progress: receives progress.
        make: creates the source and the trainer, once ranks are connected and threads are configured.
            Its configuration contains the version of the data.

    Raises:
        CapacityError: the tables need more than `tables.memory_bytes`.
        ConfigError: an optimizer does not exist, a plan does not fit, or rows or snapshots of an
            earlier run exist and `snapshots.resume` is false.
        DataError: data are missing or malformed.
        NonFiniteGradientError: a gradient contains NaN or infinity, and the policy is to raise.
        PluginError: a package that a storage, the report or the metrics require is not available.
        StorageIOError: the file of metrics cannot be written.
    """
    job = join_job(
        config.rendezvous,
        config.collective,
        framework=config.framework,
        deadline_seconds=config.deadline_seconds,
        plugin_manager=plugin_manager,
    )
    with (
        job,
        StepContainer(
            collective=job.collective,
            rendezvous=job.rendezvous,
            exchange=config.exchange,
            memory_bytes=config.tables.memory_bytes,
            config=config.shared(),
            plugin_manager=plugin_manager,
            plan=load_run_plan(config, job.collective, job.membership, plugin_manager, progress),
        ) as container,
        log_output(container, config.logging),
        trace_output(container, config.report, config.metrics),
    ):
        configure_pool(config.threads, sharing=job.membership.local_world_size)
        config = pin_data(config, job.collective, plugin_manager)
        source, trainer = make(config, container)
        if job.membership.rank > 0:
            progress = OtherRankProgress(progress)
        with (
            closing(source),
            open_trackers(config, container, plugin_manager, progress) as trackers,
        ):
            run = _Run(config, source, trainer, trackers, plugin_manager)
            is_one_host = job.membership.local_world_size == job.collective.world_size
            with (
                run.publishing,
                metrics_output(container, config.metrics, run.metrics),
                run.notes,
                run.best_kept(is_one_host),
            ):
                result = run.to_end()
            trackers.end(result)
            return result


class _Run:
    """State and steps of one run."""

    def __init__(
        self,
        config: RunConfig,
        source: ColumnSource,
        trainer: Trainer,
        trackers: RunTrackers,
        plugin_manager: PluginManager,
    ) -> None:
        self._config, self._source, self._trainer = config, source, trainer
        self._container = trainer.container
        self._ranks = Ranks(self._container.collective, self._container.quiesce)
        self._start = time.perf_counter()
        self._trackers = trackers
        self._report = RunReport(
            config,
            self._container,
            trackers,
            self._total_steps(),
            trainer.versions(),
            source,
            self._ranks,
        )
        self._progress = self._report.progress
        self._at = Position()
        # Positions of batches that were requested, but whose steps are not yet made.
        self._coming: deque[tuple[Position, bool]] = deque()
        self._ready: Iterator[Any] | None = None
        self._stop = threading.Event()
        self._is_stopped = False
        self._resumed_steps = 0
        self._has_checked = False
        self._metrics: dict[str, float] = {}
        self._metrics_step = -1
        self._loss: float | None = None
        self._num_samples = 0
        self._best = make_best_step(config)
        self._validated_step = -1
        self._validation: dict[str, float] = {}
        self._kept: BestStepSnapshots | None = None
        self._snapshots = RunSnapshots(
            self._container,
            config,
            self._progress.on_message,
            on_saved=self._progress.on_snapshot,
        )
        tell = self._progress.on_message
        self.notes = RunNotes(self._container, config, plugin_manager, tell)
        is_by_age = config.metrics.row_age is not None and is_evaluated(config)
        ages = RowAges(self._container, config, self._ranks) if is_by_age else None
        self.live = LiveEvaluation(config, self._ranks, tell, ages)
        self.live.on_window += [self._report.on_window, trackers.on_window]
        self.publishing = RunPublisher(self._container, config, self._snapshots, tell)
        self._gate = RunGate(config, self._ranks, self.publishing, tell)
        self.live.on_window.append(self._gate.on_window)
        self._counts = RunCounts(config, source, trainer, self._ranks)
        url = config.snapshots.url if self._ranks.is_first else None
        self._cuts = CutLog(url, self._ranks.world_size, tell)
        self._returns = RunReturns(config, source, self._ranks, self._gate, self._cuts, tell)
        self._snapshots.keep_steps = lambda: self._gate.kept_steps
        self._snapshots.check_data = self._check_data

    @contextmanager
    def best_kept(self, is_one_host: bool) -> Iterator[None]:
        """Enables `_train` to save snapshots of the best step within the block, if configured."""
        if self._best is None or not self._config.training.keep_best:
            yield
            return
        tell = self._progress.on_message
        with kept_best(
            self._container, self._config, self._snapshots, tell, is_one_host=is_one_host
        ) as self._kept:
            yield

    def metrics(self) -> dict[str, Any]:
        """Returns the metrics of the training, of a stream and of publications, by section."""
        found = self.live.metrics()
        stream = {name: {**each, **self._source.metrics()} for name, each in found.items()}
        training: dict[str, Any] = {
            "samples": self._num_samples,
            "tracker_failures": self._trackers.num_failures,
        }
        if self._loss is not None and math.isfinite(self._loss):
            training["loss"] = self._loss
        quality = {name: each for name, each in self._metrics.items() if math.isfinite(each)}
        training["quality"] = quality
        return {
            "training": training,
            **stream,
            **self.publishing.metrics(),
            **self._gate.metrics(),
        }

    def to_end(self) -> TrainResult:
        """Trains and evaluates as configured."""
        self._start = time.perf_counter()
        self._progress.on_start(self._total_steps())
        self._snapshots.check_folder()
        self._snapshots.check_rows()
        self._resume()
        self._report.begin(self._step)
        # Before the first step, SIGTERM ends the process. After the last one, it has no effect.
        with note_sigterm() as stop:
            return self._end(is_terminated=self._train(stop))

    def _end(self, *, is_terminated: bool) -> TrainResult:
        """Evaluates and reports, except after SIGTERM, and saves the run."""
        if not self._step and not is_terminated:
            advice = "add data, or reduce the test and validation parts"
            if getattr(self._config.data, "join", None) is not None:
                advice = "add later events, which end windows of data.join, or set data.event_time"
            raise DataError(f"found no sample to train on, expected at least one; {advice}")
        has_returned = not is_terminated and self._return_to_best()
        has_metrics = self._metrics_step == self._step and not self._report.wants_test
        if not is_terminated and not has_metrics:
            self._evaluate(is_last=True)
        self._report.on_rows(self._step, self._counts.rows())
        with self._container.span("save"):
            is_needed = has_returned or is_terminated
            self._snapshots.end(self._step, self._states, is_needed=is_needed)
        self.notes.end(self._step)
        if (last := self.live.end(self._step)) is not None:
            self._report.on_window(last)
            self._trackers.on_window(last)
        self.publishing.end()
        result = self._result()
        if is_terminated:
            self._progress.on_message(describe_sigterm(self._step, self._snapshots.last_url))
            return replace(result, is_terminated=True)
        self._report.write(result, self._snapshots.last_url)
        return result

    def _train(self, stop: threading.Event) -> bool:
        """Trains until the run is complete, or `stop` is set on any rank. Returns whether it was set."""
        self._stop = stop
        if self._best is not None and self._best.is_over:
            return False
        limit = self._config.training.steps
        while True:
            is_terminated = self._make_steps(stop)
            if self._returns.is_wanted:
                if self._returns.record(self._step):
                    loaded = self._snapshots.resume(self._seek, is_return=True)
                    assert loaded is not None
                    self._restore(loaded)
            elif limit is not None and self._step >= limit:
                return is_terminated  # A replay may end before the steps that the run has dropped.
            elif (at := self._returns.skip(self._at)) is not None:
                self._skip_to(at)
            else:
                return is_terminated

    def _skip_to(self, at: Position) -> None:
        """Continues after steps that the run has dropped, and saves the return as a step."""
        self._at = at
        self._container.state.set_steps(at.step)
        if self._config.snapshots.url is not None and not self._returns.is_replay:
            with self._container.span("save"):
                self._snapshots.save(at.step, self._states())

    def _make_steps(self, stop: threading.Event) -> bool:
        """Makes steps until the run is complete, leaves out steps, or `stop` is set on any rank. Returns
        whether it was set."""
        interval = self._config.training.evaluation_interval_steps
        for trained in self._trainer.steps(self._checked(self._ready or self._batches()), stop):
            self._at, ends_epoch = self._coming.popleft()
            if self._kept is not None:
                self._kept.is_current = False
            is_repeated = self._returns.is_repeated(self._step - 1)
            if trained.batch.cut is not None and not is_repeated:
                self._cuts.add(self._step, trained.batch.cut)
            self.live.after_step(trained, self._step)
            if self._returns.is_wanted:
                continue
            if is_repeated:
                if trained.is_stopping:
                    return True
                continue
            self._report.on_batch(trained.batch, is_first_epoch=self._at.epoch == 0)
            self._loss = trained.loss
            self._num_samples += trained.num_examples
            self._progress.on_step(self._step, trained.loss, trained.num_examples)
            if self._report.wants_rows(self._step):
                self._report.on_rows(self._step, self._counts.rows())
            is_last = self._step == self._total_steps()
            is_due = ends_epoch if interval is None else self._step % interval == 0
            if self._best is not None and (is_due or is_last):
                self._validate(self._best)
            if trained.is_stopping:
                return True
            if self._best is None and interval is not None and is_due:
                self._evaluate(is_last=is_last)
            # The last step is saved later, when the best step is known.
            if self._snapshots.is_due(self._step) and (self._best is None or not is_last):
                with self._container.span("save"):
                    self._snapshots.save(self._step, self._states())
            self.notes.after_step(self._step)
            self.publishing.after_step(self._step, trained.batch.cut, self._states)
            if self._best is not None and self._best.is_over:
                self._progress.on_message(
                    f"training stops after step {self._step:,}, because {self._best.num_since} "
                    f"evaluations did not improve validation {self._best.metric} (training.patience)"
                )
                return False
        return self._is_stopped

    def _validate(self, best: BestStep) -> None:
        """Evaluates the validation examples, and saves the step if it is the best one."""
        with self._saved_if_it_fails(), self._container.span("evaluate"):
            metrics = self._source.evaluate(self._trainer.predict, self._ranks, part="validation")
        if best.metric not in metrics:
            raise ConfigError(
                f"training.watch: found {best.metric!r}, expected one of the metrics "
                f"{', '.join(metrics)}; choose one of these",
                setting="training.watch",
            )
        why = self._source.explain_undefined
        if why is not None and math.isnan(metrics[best.metric]):
            raise DataError(
                f"training.watch: {best.metric} is undefined on the validation rows, because {why}; "
                "choose other validation rows in the section data, or another metric"
            )
        self._progress.on_metrics(self._step, metrics, "validation")
        # Ranks on different processors might round differently, so all use the first rank's value.
        value = self._ranks.gathered(np.array([metrics[best.metric]]))[0]
        self._validated_step = self._step
        is_higher_better = self._source.is_higher_better(best.metric)
        if not best.note(self._step, float(value), is_higher_better=is_higher_better):
            return
        self._validation = metrics
        if self._kept is not None:
            self._kept.is_current = True
            with self._container.span("save"):
                self._kept.save(self._step, self._states)

    def _return_to_best(self) -> bool:
        """Loads the best step if it is kept and not the last one. Returns whether it was loaded."""
        best, kept = self._best, self._kept
        if best is None:
            return False
        if self._validated_step != self._step and not best.is_over:
            self._validate(best)
        if best.step is None:
            self._progress.on_message(
                f"validation {best.metric} was always NaN; the run keeps the last step"
            )
        if kept is None or kept.is_current or best.step is None:
            return False
        states = kept.load(best.step)
        if states is None:
            return False
        self._trainer.restore(states)
        # `load` has reset the number of steps, but a resumed run must not repeat the later steps.
        self._container.state.set_steps(self._step)
        self._progress.on_message(
            f"step {best.step:,} had the best validation {best.metric}, {best.value:.4f}: the run "
            "ends with its snapshot"
        )
        return True

    def _result(self) -> TrainResult:
        """Returns the result of the run up to the current step. All ranks call it."""
        return TrainResult(
            metrics=self._metrics,
            rows=self._counts.rows(),
            steps=self._step,
            seconds=time.perf_counter() - self._start,
            not_admitted=self._counts.not_admitted(),
            tiers=self._counts.tiers(),
            extra=self._source.extra() | self._undefined() | self._report_path(),
            skipped=self._counts.skipped(),
            resumed_steps=self._resumed_steps,
            best_step=None if self._best is None else self._best.step,
            validation=self._validation,
            peak_memory_bytes=self._ranks.largest(peak_memory_bytes()),
            rank=self._ranks.rank,
        )

    def _total_steps(self) -> int | None:
        training, per_epoch = self._config.training, self._source.steps_per_epoch
        if per_epoch is None:
            return training.steps
        return min(per_epoch * training.epochs, training.steps or per_epoch * training.epochs)

    def _batches(self) -> Iterator[Any]:
        if not self._config.data.has_epochs:
            yield from self._stream_batches()
            return
        limit = self._config.training.steps
        begin = self._at
        step = begin.step
        for epoch in range(begin.epoch, self._config.training.epochs):
            skipped = begin.batch if epoch == begin.epoch else 0
            batches = self._measured(islice(self._source.batches(epoch), skipped, None))
            # `mark_epoch_ends` reads one batch ahead, so it is used only if ends of epochs matter.
            marked = (
                mark_epoch_ends(batches) if self._best is not None else zip(batches, repeat(False))
            )
            for number, (batch, is_end) in enumerate(marked, start=skipped + 1):
                # The limit may have been reduced before the run was resumed.
                if limit is not None and step >= limit:
                    return
                self._snapshots.check()
                step += 1
                self._coming.append((Position(step, epoch, number), is_end))
                yield batch

    def _checked(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields batches; before the first one of this process, checks the outputs of the model, if the
        run evaluates them."""
        if self._has_checked or not self._config.data.has_test:
            return batches
        self._has_checked = True
        model, schema = self._config.model, self._source.schema
        return check_outputs(
            batches,
            self._trainer.predict,
            self._ranks,
            kind=model.kind,
            has_vectors=model.ranking(schema) is not None,
        )

    @contextmanager
    def _saved_if_it_fails(self) -> Iterator[None]:
        """Saves the run if an evaluation fails within the block, so that no step is lost. With several
        ranks, others may not have failed, so they cannot save together."""
        try:
            yield
        except Exception:
            chosen = self._config.snapshots
            if chosen.url is not None and chosen.at_end and self._ranks.world_size == 1:
                self._snapshots.end(self._step, self._states)
                self._progress.on_message(
                    f"the evaluation after step {self._step:,} failed; the run is saved in "
                    f"{self._snapshots.last_url}: correct the cause, and add --resume"
                )
            raise

    def _stream_batches(self) -> Iterator[ColumnBatch]:
        """Yields batches of a stream, until it ends or the run is stopped."""
        limit, at = self._config.training.steps, self._at
        batches = self._measured(self._source.batches(0))
        while (
            (limit is None or at.step < limit)
            and not self._returns.is_wanted
            and (batch := next(batches, _END)) is not _END
        ):
            self._snapshots.check()
            if batch is None:
                # Other ranks learn of a stop by a step, and there is none.
                if self._ranks.largest(int(self._stop.is_set())):
                    self._is_stopped = True
                    return
                if not self._coming:
                    self.publishing.on_idle(self._step, self._states)
                continue
            at = at.after(batch.cut)
            self.live.before_step(batch)
            self._coming.append((at, False))
            yield batch

    def _measured(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields batches, and records the time to read each one."""
        while True:
            with self._container.span("read batch"):
                batch = next(batches, _END)
            if batch is _END:
                return
            yield batch

    @property
    def _step(self) -> int:
        return self._at.step

    def _states(self) -> dict[str, State]:
        """Returns the state that is needed to resume, except the state that the container saves."""
        self._cuts.flush()
        counted = {"metrics": self._metrics, "metrics_step": self._metrics_step}
        own = {POSITION: State(self._at.values() | counted)}
        if self._best is not None:
            kept = {} if self._kept is None else self._kept.values()
            more = {"metrics": self._validation, "validated_step": self._validated_step}
            own[_VALIDATION] = State(self._best.values() | more | kept)
        if origins := self._source.data.schema.origins:
            own[ORIGINS] = State(dict(origins))
        if pinned := self._source.pinned:
            own[PINNED] = State(dict(pinned))
        own.update(self._source.states(self._step))
        own.update(self.live.states() | self._gate.states())
        return {**self._trainer.states(), **self._report.states(self._result), **own}

    def _resume(self) -> None:
        """Resumes from a snapshot, if configured."""
        loaded = self._snapshots.resume(self._seek)
        if loaded is None:
            return
        self._restore(loaded)
        self._resumed_steps = self._step
        self._report.resume(loaded.states, loaded.url)
        values = loaded.states[POSITION].values
        self._metrics = dict(values.get("metrics", {}))
        self._metrics_step = values.get("metrics_step", -1)
        if self._best is not None and _VALIDATION in loaded.states:
            self._resume_validation(self._best, loaded.states[_VALIDATION].values, loaded.url)

    def _restore(self, loaded: LoadResult) -> None:
        """Continues with the state of a snapshot."""
        framework = self._config.framework
        if framework in loaded.states:
            self._trainer.restore(loaded.states)
        else:
            self._progress.on_message(
                f"{loaded.url} was not written with {framework}: rows and their optimizer state are "
                "used; ordinary parameters start from initial values"
            )
        values = loaded.states[POSITION].values
        position = read_position(loaded.url, values)
        if self._at != position:
            self._at, self._ready = position, None
            self._coming.clear()
        self._source.resume(position, loaded)
        self.live.restore(loaded.states, loaded.url)
        self._gate.restore(loaded.states)
        self._returns.begin(self._step)

    def _resume_validation(self, best: BestStep, values: Mapping[str, Any], url: str) -> None:
        """Resumes the search for the best step."""
        if not best.restore(values):
            self._progress.on_message(
                f"{url} was saved with training.watch: {values.get('metric')}; the search for the best "
                f"step starts again, by {best.metric}"
            )
            return
        self._validation = dict(values["metrics"])
        if self._kept is not None:
            self._kept.restore(values, url)
        self._validated_step = values["validated_step"]

    def _check_data(self, snapshot: Snapshot) -> None:
        """Raises if the data differ from the data of the run of a snapshot."""
        check_same_origins(snapshot, self._source.data.schema.origins)
        check_same_data(snapshot, self._source.pinned)

    def _seek(self, snapshot: Snapshot) -> None:
        """Moves the data to the position of a snapshot, while its rows are loaded."""
        self._at = read_position(snapshot.url, snapshot.state(POSITION).values)
        self._coming.clear()
        if not self._config.data.has_epochs:
            return
        batches = self._batches()
        # Reading the first batch skips those before it.
        self._ready = chain(list(islice(batches, 1)), batches)

    def _evaluate(self, *, is_last: bool) -> None:
        observe = self._report.test_observer() if is_last else None
        with self._saved_if_it_fails(), self._container.span("evaluate"):
            self._metrics = self._source.evaluate(self._trainer.predict, self._ranks, observe)
        # If this step was evaluated before, its metrics have already been reported.
        if self._metrics_step != self._step:
            self._metrics_step = self._step
            step = self._step
            if not self._metrics:
                return
            if self._best is not None and self._kept is not None and self._kept.is_current:
                step = self._best.step or step
            self._progress.on_metrics(step, self._metrics)

    def _undefined(self) -> dict[str, str]:
        names = ", ".join(name for name, value in self._metrics.items() if math.isnan(value))
        if not names or self._source.explain_undefined is None:
            return {}
        why = f"{names}: {self._source.explain_undefined}; choose other test rows with data.split"
        return {"undefined_metrics": why}

    def _report_path(self) -> dict[str, str]:
        path = self._config.report.path
        return {} if path is None else {"report_path": path}
