"""The report of a run, if configured."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from sparring import State, StepContainer, open_snapshot
from sparring.adapter import num_threads, resolve_backends
from sparring.errors import DataError, PluginError, SnapshotError
from sparring_cli import list_installed_versions
from sparring_train.columns import ColumnBatch
from sparring_train.config.reading.printer import config_as_yaml
from sparring_train.config.run import RunConfig
from sparring_train.live.windows import WindowResult
from sparring_train.loop.column_source import ColumnSource, Observe
from sparring_train.quality.calibration import CalibrationCounts
from sparring_train.report.baselines import Baselines
from sparring_train.report.host import inspect_host, resident_memory_bytes
from sparring_train.report.page import write_report
from sparring_train.report.recorder import RecordingProgress, RunRecorder
from sparring_train.report.run_data import (
    MEMORY,
    REPORT,
    SAMPLES,
    SECONDS,
    WINDOW,
    Baseline,
    Calibration,
    RunData,
    SnapshotOfRun,
    run_data,
)
from sparring_train.report.slices import SliceMetrics
from sparring_train.report.step_times import StepTimes
from sparring_train.run.ranks import Ranks
from sparring_train.run.result import Progress, TrainResult

__all__ = ["RunReport"]

_NUM_POINTS = 200


class RunReport:
    """Records data for the report, and writes it at the end. Does nothing if no path is configured.

    Args:
        config: configuration of the run; `report.path` is the file.
        container: container of the tables.
        progress: receives progress, also if no report is configured.
        total_steps: number of steps of the run, if known; determines how often rows are counted.
        versions: versions of the framework.
        source: data and metrics of the run.
        ranks: ranks of the run.

    Raises:
        PluginError: a report is configured, but matplotlib is not installed.
    """

    def __init__(
        self,
        config: RunConfig,
        container: StepContainer,
        progress: Progress,
        total_steps: int | None,
        versions: Mapping[str, str],
        source: ColumnSource,
        ranks: Ranks,
    ) -> None:
        self._config = config
        self._container = container
        self._source = source
        self._versions = dict(versions)
        self._window_end = 0
        self._slices: SliceMetrics | None = None
        self._slices_absence = ""
        self._baselines: Baselines | None = None
        self._calibration: CalibrationCounts | None = None
        # Values of cumulative series when the run was started or resumed.
        self._before: dict[str, float] = {}
        self._seconds_before: dict[str, float] = {}
        self._num_samples = 0
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._recorder: RunRecorder | None = None
        self.progress = progress
        if config.report.path is not None:
            # Raises before training, not at its end.
            if importlib.util.find_spec("matplotlib") is None:
                raise PluginError(
                    f"a report at {config.report.path} needs matplotlib, which is not installed; "
                    "run: pip install 'sparring[report]', or set report.path=null"
                )
            self._recorder = RunRecorder()
            self._slices, self._baselines = (
                source.make_slice_metrics(ranks),
                source.baselines(ranks),
            )
            self._calibration = CalibrationCounts() if source.is_binary else None
            self.progress = RecordingProgress(progress, self._recorder)
        self._interval = max(1, (total_steps or _NUM_POINTS) // _NUM_POINTS)

    def begin(self, step: int) -> None:
        """Starts to measure times, after `step` steps."""
        if self._recorder is None:
            return
        self._before = {name: each.values[-1] for name, each in self._recorder.series.items()}
        if isinstance(self._container.trace, StepTimes):
            self._seconds_before = self._container.trace.seconds()
        self._record_times(step)

    def wants_rows(self, step: int) -> bool:
        """Returns whether rows should be counted after this step."""
        return self._recorder is not None and step % self._interval == 0

    def on_rows(self, step: int, rows: Mapping[str, int]) -> None:
        """Records the number of rows of each table after a step, the times and the memory."""
        if self._recorder is not None:
            for table, count in rows.items():
                self._recorder.record(step, f"rows/{table}", count)
            self._record_times(step)

    def on_window(self, result: WindowResult) -> None:
        """Records a window of event time."""
        # After a change of metrics.window_seconds, a window may end before the last one.
        if self._recorder is None or int(result.end) < self._window_end:
            return
        self._window_end = int(result.end)
        values = dict(result.metrics)
        for each in result.slices:
            values |= {f"{n}/{each.dimension}={each.value}": v for n, v in each.metrics.items()}
        for name, value in values.items():
            self._recorder.record(self._window_end, WINDOW + name, value)

    def _record_times(self, step: int) -> None:
        recorder, times = self._recorder, self._container.trace
        if recorder is None or not isinstance(times, StepTimes):
            return
        cumulative = {
            SECONDS + part: seconds - self._seconds_before.get(part, 0.0)
            for part, seconds in times.seconds().items()
        }
        for name, value in (cumulative | {SAMPLES: float(self._num_samples)}).items():
            recorder.record(step, name, self._before.get(name, 0.0) + value)
        if memory := resident_memory_bytes():
            recorder.record(step, MEMORY, memory)

    def on_batch(self, batch: ColumnBatch, *, is_first_epoch: bool) -> None:
        """Counts the samples and the ids of a training batch."""
        if self._recorder is None:
            return
        self._num_samples += batch.num_examples
        with self._container.span("count ids"):
            for feature, column in batch.ids.items():
                self._recorder.observe_ids(feature, column.ids)
            if self._slices is not None and is_first_epoch:
                self._slices.on_training_batch(batch)
            if self._baselines is not None and is_first_epoch:
                self._baselines.on_training_batch(batch)

    @property
    def wants_test(self) -> bool:
        """Whether the final predictions on the test examples have not been observed yet."""
        slices, calibration = self._slices, self._calibration
        return (slices is not None and not slices.is_measured) or (
            calibration is not None and not calibration.num_updates
        )

    def test_observer(self) -> Observe | None:
        """Returns a callback for the final predictions on the test examples. All ranks call it."""
        observers: list[Observe] = []
        for each in (self._slices, self._baselines):
            if each is not None:
                each.begin()
                observers.append(each.on_test_batch)

        calibration = self._calibration

        def observe(batch: ColumnBatch, predictions: Any, labels: Any) -> None:
            for each in observers:
                each(batch, predictions, labels)
            if calibration is not None:
                calibration.update(predictions, labels)

        return observe if observers or calibration is not None else None

    def states(self, result: Callable[[], TrainResult]) -> dict[str, State]:
        """Returns the state for a snapshot: the data of the report so far; empty without a path.

        Args:
            result: returns the result of the run so far.
        """
        if self._recorder is None:
            return {}
        so_far = result()
        # Only the first rank saves it.
        is_first = so_far.rank == 0
        return {
            REPORT: State(self._data(so_far, self._recorder, None).as_json() if is_first else None)
        }

    def resume(self, states: Mapping[str, State], url: str) -> None:
        """Continues with the curves in the snapshot at `url`, if it contains any."""
        self._baselines = None
        if self._slices is not None:
            self._slices = None
            self._slices_absence = (
                "Not measured, because the run was resumed and earlier counts of ids are unknown."
            )
        if self._recorder is None or REPORT not in states:
            return
        try:
            series = run_data(states[REPORT].values, url).series
        except DataError as error:  # For example data of a later release.
            self.progress.on_message(f"the report starts after this snapshot: {error}")
            return
        for name, points in series.items():
            if name.startswith(WINDOW):
                self._window_end = max(self._window_end, *points.steps)
            for step, value in zip(points.steps, points.values, strict=True):
                self._recorder.record(step, name, value)

    def write(self, result: TrainResult, snapshot_url: str | None) -> None:
        """Writes the file, on the first rank.

        Args:
            result: result of the run.
            snapshot_url: its newest snapshot, if any.

        Raises:
            DataError: the file cannot be written.
        """
        path, recorder = self._config.report.path, self._recorder
        if path is None or recorder is None or result.rank > 0:
            return
        self._record_times(result.steps)
        write_report(
            path,
            self._data(result, recorder, snapshot_url),
            recorder.id_counts(),
            config_text=config_as_yaml(self._config),
        )

    def _data(
        self, result: TrainResult, recorder: RunRecorder, snapshot_url: str | None
    ) -> RunData:
        best = {name: result.extra.get(f"best_{name}") for name in result.metrics}
        return RunData(
            started=self._started,
            seconds=result.seconds,
            steps=result.steps,
            resumed_steps=result.resumed_steps,
            metrics=dict(result.metrics),
            undefined_metrics=result.extra.get("undefined_metrics", ""),
            best={n: float(each) for n, each in best.items() if isinstance(each, (int, float))},
            baselines=self._found_baselines(),
            validation=dict(result.validation),
            best_step=result.best_step,
            rows=dict(result.rows),
            not_admitted=dict(result.not_admitted),
            skipped=dict(result.skipped),
            tiers={name: [dict(tier) for tier in tiers] for name, tiers in result.tiers.items()},
            series=dict(recorder.series),
            calibration=self._found_calibration(),
            slices=[] if self._slices is None else self._slices.slices(),
            slices_absence=self._slices_absence,
            config=self._config.model_dump(mode="json"),
            versions=self._installed | self._versions,
            backends=self._backends(),
            host=inspect_host(),
            world_size=self._container.collective.world_size,
            threads=num_threads(),
            peak_memory_bytes=result.peak_memory_bytes or None,
            snapshot=_snapshot(snapshot_url),
        )

    def _found_baselines(self) -> list[Baseline]:
        own = [] if self._baselines is None else self._baselines.baselines()
        popularity = self._source.popularity
        return [Baseline(name="the most frequent items", metrics=popularity)] if popularity else own

    def _found_calibration(self) -> list[Calibration]:
        groups = [] if self._calibration is None else self._calibration.groups()
        return [Calibration(**asdict(each)) for each in groups]

    @cached_property
    def _installed(self) -> dict[str, str]:
        return {name: found for name, found in list_installed_versions().items() if found}

    def _backends(self) -> dict[str, str]:
        config, container = self._config, self._container
        storages = [
            " over ".join(tier.backend for tier in container.tiers(name))
            for name in container.tables
        ]
        collective = resolve_backends(
            config.rendezvous.backend, config.collective.backend, framework=config.framework
        ).collective
        within_host = container.collective.within_host
        if within_host not in (None, collective):
            collective = f"{collective}, {within_host} within a host"
        return {
            "framework": config.framework,
            "storage": ", ".join(dict.fromkeys(filter(None, storages))),
            "collective": collective,
        }


def _snapshot(url: str | None) -> SnapshotOfRun | None:
    """Returns a description of a snapshot; None if it no longer exists."""
    if url is None:
        return None
    try:
        found = open_snapshot(url)
    except SnapshotError:
        return None
    return SnapshotOfRun(url=url, step=found.step, manifest_hash=found.manifest_hash)
